package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

// Forever is a limit on timestamps or ages, in ms, that admits all of them.
const Forever = math.MaxInt64

// DeadLetterMinBytes is a record size that is enough for a dead letter without key and value. The longest
// headers of a dead letter are the names of topics and the reason.
const DeadLetterMinBytes = 8 << 10

// max.message.bytes of a new internal topic. A reader can decompress a batch of the largest value with the
// default of MaxDecompressedBatchBytes. If a broker refuses a value, the app tries half of it, and so on down to
// the smallest value: this is Kafka's default, and has room for every row and verdict.
const (
	internalMaxMessage = 64 << 20
	internalMinMessage = 1 << 20
)

// EnvelopeBytesMax is how many bytes an envelope may add to an event in the repartition topic. So a batch with
// one event may have this many bytes more there than in the input.
const EnvelopeBytesMax = 64 << 10

// Settings of new topics for which createTopic tries other values if a broker refuses them.
const (
	maxMessageSetting     = "max.message.bytes"
	timestampAfterSetting = "message.timestamp.after.max.ms"
)

// Segment sizes of internal topics. A broker frees disk only by whole segments, and never frees the segment
// that it writes. With Kafka's default, each partition would therefore keep up to a GiB of records that were
// purged long ago. A broker refuses a batch that is larger than a segment, so no segment may be smaller than
// the largest max.message.bytes.
const (
	segmentBytesSetting = "segment.bytes"
	purgedSegmentBytes  = internalMaxMessage // for topics whose records are read once
	// Rows of a changelog may stay for long, and each segment costs the broker open files. So segments of
	// changelogs are larger, and there are fewer.
	changelogSegmentBytes = 4 * internalMaxMessage
)

// optionalSettings are the settings of new topics without which oncebus still works. A broker may refuse one of
// them. Depending on the setting, outputs then accept fewer timestamps, restores take longer, the brokers' disks
// become fuller, or a broker can lose records (a start warns of the last).
var optionalSettings = []string{timestampAfterSetting, minInsyncConfig, "segment.ms", segmentBytesSetting, "min.cleanable.dirty.ratio"}

// internalMessageBytes returns the max.message.bytes that internal topics need: enough for the largest record
// of a batch that decompresses to this many bytes, plus what oncebus adds. It is a power of two, as the limits
// of hosted Kafka are.
func internalMessageBytes(decompressed int) int {
	limit := internalMaxMessage
	for limit/2 >= max(decompressed+EnvelopeBytesMax, internalMinMessage) {
		limit /= 2
	}
	return limit
}

func emissionConfigs() map[string]string {
	return map[string]string{timestampAfterSetting: strconv.Itoa(Forever)}
}

// outcomesConfigs returns the settings of new outcomes topics. It sets the cleanup policy, because the brokers'
// default may be compact.
func outcomesConfigs() map[string]string { return map[string]string{"cleanup.policy": "delete"} }

func manifestConfigs() map[string]string {
	return map[string]string{"cleanup.policy": "compact", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
}

// repartitionConfigs returns the settings of the repartition topic. The app deletes the topic's records below
// the checkpoints, so the broker must never delete them by age (G6). The broker sets the timestamps of the
// records (LogAppendTime), because the app uses them as broker time.
func repartitionConfigs(maxMessage int) map[string]string {
	return map[string]string{
		"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
		"message.timestamp.type": "LogAppendTime", maxMessageSetting: strconv.Itoa(maxMessage), segmentBytesSetting: strconv.Itoa(purgedSegmentBytes),
	}
}

// verdictsConfigs returns the settings of the verdicts topic. Its retention is short, because only a waiting
// HTTP request reads its verdict.
func verdictsConfigs(maxMessage int) map[string]string {
	return map[string]string{
		"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(time.Hour.Milliseconds(), 10),
		"segment.ms": strconv.FormatInt((10 * time.Minute).Milliseconds(), 10), segmentBytesSetting: strconv.Itoa(purgedSegmentBytes),
		"message.timestamp.type": "LogAppendTime", maxMessageSetting: strconv.Itoa(maxMessage),
	}
}

// changelogConfigs returns the settings of changelogs. The app deletes their records below the floors of the
// checkpoints, which follow stream time. The broker must never delete records by age, because an app may be
// stopped for longer than any retention (T2). The cleanup policy contains delete, because brokers refuse
// DeleteRecords with compact alone. Every transaction writes the checkpoint row again. So segments must roll and
// be cleaned often: otherwise a restore reads many old checkpoint rows, and takes long.
func changelogConfigs(maxMessage int) map[string]string {
	return map[string]string{
		"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1",
		"message.timestamp.type": "LogAppendTime", maxMessageSetting: strconv.Itoa(maxMessage),
		"segment.ms": strconv.FormatInt(time.Hour.Milliseconds(), 10), segmentBytesSetting: strconv.Itoa(changelogSegmentBytes), "min.cleanable.dirty.ratio": "0.3",
	}
}

// TopicLimits are the limits of a topic on its records.
type TopicLimits struct {
	MaxBytes int32
	// BytesSetting is the name of the setting whose value MaxBytes is.
	BytesSetting string
	// ReadMax is the size in bytes to which the app decompresses a batch of the topic, if the app reads the
	// topic; 0 for no bound.
	ReadMax                 int
	BeforeMaxMS, AfterMaxMS int64 // how far a timestamp may be before or after the broker time, in ms
	AppendTime              bool  // whether the broker replaces timestamps by its own
	Compacted               bool  // whether the topic is compacted, so that every record needs a key
}

// batchBytesSetting also bounds what oncebus writes to internal topics, because oncebus must read these batches
// again.
const batchBytesSetting = "ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES"

// defaultMaxBytes is the max.message.bytes of a topic that does not set it.
const defaultMaxBytes = 1 << 20

// readConfigs reads the limits of topics. It also checks the settings of topics that need certain values.
func (t *Topology) readConfigs(ctx context.Context, admin *kadm.Client, topics ...string) error {
	t.limits, t.settings = map[string]TopicLimits{}, map[string]map[string]string{}
	for _, name := range t.former {
		if slices.Contains(topics, name) {
			t.limits[name] = t.limitsOfFormer(ctx, admin, name)
		}
	}
	topics = slices.DeleteFunc(slices.Clone(topics), func(name string) bool { return slices.Contains(t.former, name) })
	described, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return fmt.Errorf("describe topic settings: %w", err)
	}
	var mistakes []error
	for _, topic := range described {
		if topic.Err != nil {
			return fmt.Errorf("describe the settings of topic %s: %w", topic.Name, kafka.Denied(topic.Err, "DescribeConfigs", kafka.ResourceTopic, topic.Name))
		}
		values := settingsOf(topic)
		t.settings[topic.Name] = values
		t.limits[topic.Name] = t.limitsOf(topic.Name, values)
		mistakes = append(mistakes, t.checkConfigs(topic.Name, values)...)
	}
	return errors.Join(mistakes...)
}

// limitsOfFormer returns the limits of a topic of a former route. If the app no longer has the right to read
// these limits, it returns Kafka's defaults.
func (t *Topology) limitsOfFormer(ctx context.Context, admin *kadm.Client, name string) TopicLimits {
	described, err := admin.DescribeTopicConfigs(ctx, name)
	if err == nil && len(described) == 1 && described[0].Err == nil {
		return t.limitsOf(name, settingsOf(described[0]))
	}
	return t.limitsOf(name, nil)
}

// limitsOf returns the limits of a topic with these settings. For an internal topic they are at most the size to
// which the topic's readers decompress a batch.
func (t *Topology) limitsOf(topic string, values map[string]string) TopicLimits {
	limits := TopicLimits{
		MaxBytes:     int32(configInt(values, maxMessageSetting, defaultMaxBytes)),
		BytesSetting: maxMessageSetting,
		BeforeMaxMS:  timestampBound(values, "message.timestamp.before.max.ms"),
		AfterMaxMS:   timestampBound(values, timestampAfterSetting),
		AppendTime:   values["message.timestamp.type"] == "LogAppendTime",
		Compacted:    isCompacted(values),
	}
	isInternal := slices.Contains(t.internal(), topic)
	if isInternal || slices.Contains(t.Routed, topic) || slices.Contains(t.Prepartitioned, topic) {
		limits.ReadMax = t.BatchMax
	}
	if topic == t.Repartition && t.BatchMax > 0 {
		limits.ReadMax += EnvelopeBytesMax
	}
	if isInternal && t.BatchMax > 0 && limits.ReadMax < int(limits.MaxBytes) {
		limits.MaxBytes, limits.BytesSetting = int32(limits.ReadMax), batchBytesSetting
	}
	return limits
}

// InputLimits are the limits of a topic that others write.
type InputLimits struct {
	TopicLimits

	// RetentionMS is the age in ms at which the broker deletes records, by their timestamps; Forever if it
	// deletes no record by age.
	RetentionMS int64
}

// ReadInputLimits returns the limits of topics, by topic.
func ReadInputLimits(ctx context.Context, admin *kadm.Client, topics ...string) (map[string]InputLimits, error) {
	described, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("describe topic settings: %w", err)
	}
	all := map[string]InputLimits{}
	for _, topic := range described {
		if topic.Err != nil {
			return nil, fmt.Errorf("describe the settings of topic %s: %w", topic.Name, kafka.Denied(topic.Err, "DescribeConfigs", kafka.ResourceTopic, topic.Name))
		}
		values := settingsOf(topic)
		all[topic.Name] = InputLimits{TopicLimits: new(Topology).limitsOf(topic.Name, values), RetentionMS: retentionOf(values)}
	}
	return all, nil
}

// retentionOf returns the age in ms at which the broker deletes the records of a topic with these settings, by
// their timestamps; Forever if it deletes no record by age.
func retentionOf(values map[string]string) int64 {
	ms := configInt(values, "retention.ms", Forever)
	if ms < 0 || values["cleanup.policy"] == "compact" {
		return Forever
	}
	return ms
}

// timestampBound returns the bound, in ms, on how far a timestamp may be from the broker time. Each bound has a
// setting of its own. Kafka before 4.0 also has one setting for both bounds,
// message.timestamp.difference.max.ms, which applies if the bound's own setting has its default value or is
// unknown.
func timestampBound(values map[string]string, name string) int64 {
	if bound := configInt(values, name, Forever); bound != Forever {
		return bound
	}
	return configInt(values, "message.timestamp.difference.max.ms", Forever)
}

// isCompacted reports whether the cleanup policy contains compact, with or without delete.
func isCompacted(values map[string]string) bool {
	return strings.Contains(values["cleanup.policy"], "compact")
}

func configInt(values map[string]string, name string, fallback int64) int64 {
	if v, err := strconv.ParseInt(values[name], 10, 64); err == nil {
		return v
	}
	return fallback
}

// checkConfigs returns an error for each setting with which an internal topic would lose state, an outcomes
// topic would lose outcomes, or a dead-letter topic would not accept dead letters.
func (t *Topology) checkConfigs(name string, values map[string]string) []error {
	var want map[string]string
	switch {
	case name == t.Manifest:
		want = map[string]string{"cleanup.policy": "compact"}
	case name == t.Repartition:
		want = map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
	case name == t.Verdicts:
		want = map[string]string{"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
	case slices.Contains(t.internal(), name):
		want = map[string]string{"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
	case t.deadLetters[name] && configInt(values, "max.message.bytes", Forever) < DeadLetterMinBytes:
		return []error{kafka.OperatorErrorf("dead-letter topic %s has max.message.bytes=%s, too little for the headers of a dead letter: set it to at least %d", name, values["max.message.bytes"], DeadLetterMinBytes)}
	case slices.Contains(t.outcomes, name) && isCompacted(values):
		return []error{kafka.OperatorErrorf("outcomes topic %s has cleanup.policy=%s: compaction deletes an outcome when a later one has the same record key, and one without a value; it must be delete: alter it with %s, or name another topic in outcomes",
			name, values["cleanup.policy"], alterConfig(name, "cleanup.policy", "delete"))}
	default:
		return nil
	}
	var mistakes []error
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if values[key] != want[key] {
			mistakes = append(mistakes, kafka.OperatorErrorf("internal topic %s has %s=%s, it must be %s: alter it with %s",
				name, key, values[key], want[key], alterConfig(name, key, want[key])))
		}
	}
	if name == t.Manifest || name == t.Repartition || name == t.Verdicts {
		return mistakes
	}
	if policy := values["cleanup.policy"]; policy != "compact,delete" && policy != "delete,compact" {
		mistakes = append(mistakes, kafka.OperatorErrorf("changelog %s has cleanup.policy=%s, it must be compact,delete", name, policy))
	}
	return mistakes
}

// readSettings reads the settings of the topics that the user may describe. It does not use kadm, which returns
// an error for all topics if one is denied: the app does not need the right to describe the settings of its
// inputs.
func (f *Facts) readSettings(ctx context.Context, c Conn) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range f.existing() {
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, name
		req.Resources = append(req.Resources, resource)
	}
	if len(req.Resources) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, c.Client)
	if err != nil {
		return fmt.Errorf("describe topic settings: %w", err)
	}
	for i := range resp.Resources {
		resource := &resp.Resources[i]
		if resource.ErrorCode != 0 {
			continue // judgeRights names the right
		}
		values := map[string]string{}
		for _, c := range resource.Configs {
			if c.Value != nil {
				values[c.Name] = *c.Value
			}
		}
		f.topology.settings[resource.ResourceName] = values
	}
	return nil
}

// judgeSegments finds an internal topic whose segments keep more of a broker's disk than the segments of a new
// internal topic.
func (t *Topology) judgeSegments(name string, values map[string]string) []Finding {
	most := int64(changelogSegmentBytes)
	switch {
	case name == t.Manifest || !slices.Contains(t.internal(), name):
		return nil
	case name == t.Repartition || name == t.Verdicts:
		most = purgedSegmentBytes
	}
	size := configInt(values, segmentBytesSetting, 0)
	if size <= most {
		return nil
	}
	return []Finding{{
		Level:  Note,
		Text:   fmt.Sprintf("topic %s has %s=%d: each of its %d partitions keeps up to so many bytes of records that were purged", name, segmentBytesSetting, size, t.Topics[name].Partitions),
		Action: alterConfig(name, segmentBytesSetting, strconv.FormatInt(most, 10)),
	}}
}

// judgeRetention finds topics that keep the events of a route for a shorter time than an input keeps them. An
// event is emitted with the timestamp that its producer wrote, and the broker deletes records by timestamp.
// Example: the input raw keeps 30 days, and the output unique keeps 7. An app that starts on this history emits
// all of it. At its next retention check the broker deletes the events of three weeks from unique, before most
// consumers have read them.
func (f *Facts) judgeRetention() (findings []Finding) {
	longest, input := map[string]int64{}, map[string]string{} // by the topic that a route writes
	for _, route := range f.Routes.Routes {
		for _, from := range route.Topics {
			values, known := f.topology.settings[from] // unknown if the user may not read them
			kept := retentionOf(values)
			for _, to := range []string{route.Output, route.Duplicates.Topic} {
				if known && to != "" && kept > longest[to] {
					longest[to], input[to] = kept, from
				}
			}
		}
	}
	for _, to := range slices.Sorted(maps.Keys(longest)) {
		values, known := f.topology.settings[to]
		kept := retentionOf(values)
		if !known || kept >= longest[to] || values["message.timestamp.type"] == "LogAppendTime" {
			continue
		}
		most := "-1"
		if longest[to] < Forever {
			most = strconv.FormatInt(longest[to], 10)
		}
		findings = append(findings, Finding{
			Level: Note,
			Text: fmt.Sprintf("topic %s has retention.ms=%d, and its input %s keeps events for longer: an event comes out with its own timestamp, so Kafka deletes one of a backlog that is older",
				to, kept, input[to]),
			Action: alterConfig(to, "retention.ms", most),
		})
	}
	return findings
}

// shownSettings are the topic settings that a diagnosis prints.
var shownSettings = []string{"cleanup.policy", "retention.ms", "max.message.bytes", "message.timestamp.type", minInsyncConfig}

// judgeSettings judges the settings that a start checks, and shows the most important ones.
func (f *Facts) judgeSettings() []Finding {
	var findings []Finding
	for _, name := range f.existing() {
		values, ok := f.topology.settings[name]
		if !ok || !slices.Contains(f.topology.all(), name) {
			continue // the user lacks a right, or the topic belongs to Kafka
		}
		wrong := failures(errors.Join(f.topology.checkConfigs(name, values)...))
		if findings = append(findings, wrong...); len(wrong) > 0 {
			continue
		}
		var texts []string
		for _, key := range shownSettings {
			if value := values[key]; value != "" {
				texts = append(texts, key+"="+value)
			}
		}
		findings = append(findings, Finding{Text: fmt.Sprintf("topic %s: %s", name, strings.Join(texts, " "))})
		findings = append(findings, f.topology.judgeSegments(name, values)...)
	}
	findings = append(findings, f.judgeRetention()...)
	if len(findings) == 0 {
		findings = append(findings, Finding{Level: Unchecked, Text: "no topic has settings that oncebus may read", Action: "see topics and rights"})
	}
	return findings
}
