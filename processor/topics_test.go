package processor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
)

// withDuplicates is the bench's routes file with a policy for copies.
func withDuplicates(policy string) string { return benchRoutes + "    duplicates: " + policy + "\n" }

// TestMissingTopicsAreNamedAtOnce protects that, without ONCEBUS_CREATE_TOPICS, a start names all missing input,
// output, duplicates and dead-letter topics.
func TestMissingTopicsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, withDuplicates("{to: signals.duplicates}"))
	b.createTopic("signals.unique", 4)
	cfg := b.config("one")
	cfg.CreateTopics = false
	const way = " does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true"
	b.refused(cfg, "topic signals.raw"+way, "topic signals.duplicates"+way, "topic dead"+way)
	for _, name := range []string{"signals.raw", "signals.duplicates", "dead"} {
		b.createTopic(name, 4)
	}
	b.ready(b.start(cfg))
}

// TestInternalNamesAreNotForRoutes protects that a route can neither read nor write a topic that the app keeps for
// itself.
func TestInternalNamesAreNotForRoutes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"app-repartition", "app-repartition-changelog", "app-manifest"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, strings.Replace(benchRoutes, "signals.unique", name, 1))
			b.refused(b.config("one"), "routes name topic "+name+", which is internal to app app", "use another topic or ONCEBUS_APP_ID")
		})
	}
}

// alter changes one setting of a topic.
func (b *bench) alter(topic, name, value string) {
	b.t.Helper()
	resp, err := b.admin.AlterTopicConfigs(b.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: kmsg.StringPtr(value)}}, topic)
	if err == nil {
		_, err = resp.On(topic, nil)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestWrongSettingsOfInternalTopicsAreRefused protects against topic settings that would, in time, lose something
// oncebus relies on. The refusal says how to correct the setting.
func TestWrongSettingsOfInternalTopicsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.runOnce(cfg, "signals.raw")
	const changelog = "app-repartition-changelog"
	for _, tt := range []struct{ topic, name, wrong, right string }{
		{changelog, "cleanup.policy", "delete", "compact,delete"},
		{changelog, "cleanup.policy", "compact", "compact,delete"},
		{changelog, "retention.ms", "86400000", "-1"},
		{changelog, "retention.bytes", "1000000", "-1"},
		{changelog, "message.timestamp.type", "CreateTime", "LogAppendTime"},
		{"app-repartition", "cleanup.policy", "compact", "delete"},
		{"app-repartition", "retention.ms", "604800000", "-1"},
		{"app-repartition", "retention.bytes", "1000000", "-1"},
		{"app-repartition", "message.timestamp.type", "CreateTime", "LogAppendTime"},
		{"app-manifest", "cleanup.policy", "delete", "compact"},
	} {
		t.Run(tt.topic+" "+tt.name+" "+tt.wrong, func(t *testing.T) {
			b.t = t
			b.alter(tt.topic, tt.name, tt.wrong)
			b.refused(cfg, tt.topic+" has "+tt.name+"="+tt.wrong, tt.right)
			b.alter(tt.topic, tt.name, tt.right)
		})
	}
	b.t = t
	b.ready(b.start(cfg))
}

// TestAgeDeletesNothingFromAChangelog protects that no retention deletes from a changelog, because a stop may be
// longer than any retention. An app of an older build gets the command that alters its changelog, whatever its
// windows.
func TestAgeDeletesNothingFromAChangelog(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.runOnce(cfg, "signals.raw")
	const changelog = "app-repartition-changelog"
	b.alter(changelog, "retention.ms", "94200000") // two windows, the grace and a day
	b.refused(cfg, "internal topic "+changelog+" has retention.ms=94200000, it must be -1",
		"kafka-configs.sh --alter --entity-type topics --entity-name "+changelog+" --add-config retention.ms=-1")
	b.alter(changelog, "retention.ms", "-1")
	b.apply(strings.Replace(benchRoutes, "window: 1h", "window: 48h", 1))
	b.ready(b.start(cfg))
}

// TestAllWrongSettingsAreReportedTogether protects that one start reports all wrong settings, so that an operator can
// correct them at once.
func TestAllWrongSettingsAreReportedTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.runOnce(cfg, "signals.raw")
	b.alter("app-repartition-changelog", "retention.ms", "1")
	b.alter("app-repartition", "retention.ms", "1")
	b.alter("app-manifest", "cleanup.policy", "delete")
	b.refused(cfg, "app-repartition-changelog has retention.ms=1", "app-repartition has retention.ms=1", "app-manifest has cleanup.policy=delete")
}

// TestCompactedOutcomesTopicIsRefused protects outcomes against compaction: an outcome would replace the outcome of
// another event with the same record key, and an outcome without a value would be a tombstone.
func TestCompactedOutcomesTopicIsRefused(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"compact", "compact,delete", "delete,compact"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
			b.createTopic("ops.outcomes", 4, "cleanup.policy", policy)
			cfg := b.config("one")
			way := "kafka-configs.sh --alter --entity-type topics --entity-name ops.outcomes --add-config cleanup.policy=delete"
			b.refused(cfg, "outcomes topic ops.outcomes has cleanup.policy="+policy, way)
			assertFinding(t, b.diagnose(cfg, 0), app.Fails, "settings", way)
			b.alter("ops.outcomes", "cleanup.policy", "delete")
			b.ready(b.start(cfg))
		})
	}
}

// TestOutcomesTopicIsCreatedWithoutCompaction protects that the outcomes topic is created without compaction,
// whatever the default of the brokers is.
func TestOutcomesTopicIsCreatedWithoutCompaction(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	policies := map[string]string{}
	b.refuseTopics(kerr.InvalidConfig, func(topic string, configs map[string]string) string {
		policies[topic] = configs["cleanup.policy"]
		return ""
	})
	i := b.ready(b.start(b.config("one")))
	must(t, i.stop())
	if got := policies["ops.outcomes"]; got != "delete" {
		t.Errorf("cleanup.policy is %q, want delete", got)
	}
}
