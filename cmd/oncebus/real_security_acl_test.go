//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
)

// rule is one row of the table of rights in SECURITY.md.
type rule struct {
	resource   string // as in kafka-acls.sh
	names      string // for readers of the page
	operations string
	why        string
	// of returns the resource names in a world with realRoutes.
	of func(w *world) []string
}

// settingRules are the least rights that oncebus needs, and the source of the page's
// table.
var settingRules = []rule{
	{
		"topic", "every input", "Read", "",
		func(w *world) []string { return w.topicsOf(realInputs) },
	},
	{
		"topic", "every output, duplicates and dead-letter topic", "Write, DescribeConfigs", "its size and time limits decide what fits",
		func(w *world) []string { return w.topicsOf(realOutputs) },
	},
	{
		"topic", "`<app>-manifest`, `<app>-repartition`, `<app>-verdicts` (if a route has `http`) and the changelogs, or the prefix `<app>-`", "Read, Write, DescribeConfigs", "",
		func(w *world) []string {
			return []string{w.app + "-manifest", w.app + "-repartition", w.app + "-repartition-changelog", w.app + "-" + w.topic("orders.raw") + "-changelog"}
		},
	},
	{
		"topic", "the output of every route with `executor_group`", "Read", "how far its executor has committed shows only with its control records",
		func(*world) []string { return nil }, // realRoutes have none
	},
	{
		"group", "every `executor_group`", "Describe", "its committed offsets",
		func(*world) []string { return nil }, // realRoutes have none
	},
	{
		"topic", "every `outcomes` topic", "Read, DescribeConfigs", "a start refuses one that is compacted",
		func(*world) []string { return nil }, // realRoutes have none
	},
	{
		"group", "`<app>-route` (unless all inputs are prepartitioned), `<app>-dedup`", "Read", "",
		func(w *world) []string { return []string{w.app + "-route", w.app + "-dedup"} },
	},
	{
		"transactional-id", "prefix `<app>-`", "Write", "a process with it can fence this app: grant it to this app only",
		func(w *world) []string { return []string{w.app + "-"} },
	},
}

// optionalRules follow on the page; they enable further functions.
var optionalRules = []rule{
	{"topic", "prefix `<app>-`", "Create", "for the first start, unless an administrator creates the internal topics", nil},
	{"topic", "every output, duplicates and dead-letter topic", "Read", "to see a transaction that [hangs](OPERATIONS.md#hanging-transactions) there; without it the next one decides about its records too", nil},
	{"topic", "`<app>-repartition` and the changelogs", "Delete", "to delete records that no event needs; without it the topics grow, and the log says so once for each", nil},
}

// right is one operation on one resource.
type right struct{ resource, name, operation string }

func (r right) String() string {
	return fmt.Sprintf("no right to %s on %s %s", r.operation, r.resource, r.name)
}

// rightsOf returns the rights of rules in a world.
func rightsOf(w *world, rules []rule) []right {
	var rights []right
	for _, rule := range rules {
		for _, name := range rule.of(w) {
			for op := range strings.SplitSeq(rule.operations, ", ") {
				rights = append(rights, right{rule.resource, name, op})
			}
		}
	}
	return rights
}

// acl returns the ACL of a right for a user. Transactional ids and names with a
// prefix become prefixed ACLs.
func (r right) acl(t *testing.T, user string) *kadm.ACLBuilder {
	t.Helper()
	op, err := kmsg.ParseACLOperation(r.operation)
	if err != nil {
		t.Fatal(err)
	}
	b := kadm.NewACLs().Allow("User:" + user).AllowHosts("*").Operations(op)
	pattern := kadm.ACLPatternLiteral
	if strings.HasSuffix(r.name, "-") {
		pattern = kadm.ACLPatternPrefixed
	}
	switch b.ResourcePatternType(pattern); r.resource {
	case "topic":
		b.Topics(r.name)
	case "group":
		b.Groups(r.name)
	default:
		b.TransactionalIDs(r.name)
	}
	return b
}

// grant grants rights to a user and waits until the broker applies them.
func (s *secured) grant(t *testing.T, user string, rights ...right) {
	t.Helper()
	for _, r := range rights {
		done, err := s.Admin().CreateACLs(t.Context(), r.acl(t, user))
		for _, d := range done {
			err = errors.Join(err, d.Err)
		}
		if err != nil {
			t.Fatalf("grant %v: %v", r, err)
		}
	}
	s.awaitACLs(t, user, 1, rights)
}

// revoke revokes rights and waits until the broker applies that.
func (s *secured) revoke(t *testing.T, user string, rights ...right) {
	t.Helper()
	for _, r := range rights {
		done, err := s.Admin().DeleteACLs(t.Context(), r.acl(t, user))
		for _, d := range done {
			err = errors.Join(err, d.Err)
		}
		if err != nil {
			t.Fatalf("revoke %v: %v", r, err)
		}
	}
	s.awaitACLs(t, user, 0, rights)
}

func (s *secured) awaitACLs(t *testing.T, user string, want int, rights []right) {
	t.Helper()
	eventually(t, "the broker has the changed rights", func(ctx context.Context) error {
		for _, r := range rights {
			described, err := s.Admin().DescribeACLs(ctx, r.acl(t, user))
			if err != nil {
				return err
			}
			n := 0
			for _, d := range described {
				n += len(d.Described)
			}
			if n != want {
				return fmt.Errorf("%v: %d entries, want %d", r, n, want)
			}
		}
		return nil
	})
}

// createAll creates the topics of realRoutes as an administrator would before the
// start, with the settings of SECURITY.md.
func (w *world) createAll(internal bool) {
	w.t.Helper()
	w.createTopics(nil, append(slices.Clone(realInputs), realOutputs...)...)
	if !internal {
		return
	}
	names := settingRules[2].of(w)
	settings := map[string][]string{
		names[0]: {"cleanup.policy=compact"},
		names[1]: {"cleanup.policy=delete", "retention.ms=-1", "retention.bytes=-1", "message.timestamp.type=LogAppendTime"},
	}
	changelog := []string{"cleanup.policy=compact,delete", "retention.ms=-1", "retention.bytes=-1", "message.timestamp.type=LogAppendTime"}
	settings[names[2]], settings[names[3]] = changelog, changelog
	for name, configs := range settings {
		values := map[string]*string{}
		for _, c := range configs {
			key, value, _ := strings.Cut(c, "=")
			values[key] = &value
		}
		partitions := int32(realPartitions)
		if name == names[0] {
			partitions = 1
		}
		if created, err := w.admin.CreateTopic(w.t.Context(), partitions, -1, values, name); err != nil || created.Err != nil {
			w.t.Fatalf("create %s: %v, %v", name, err, created.Err)
		}
	}
}

// asUser returns the settings of a process with a SCRAM user that has no rights.
func (s *secured) asUser(user string) []string {
	return s.at("SASL", "CREATE_TOPICS=false", "SASL_MECHANISM=SCRAM-SHA-512", "SASL_USERNAME="+user, "SASL_PASSWORD="+canaryScram)
}

// testRights runs the main path with exactly the rights of SECURITY.md, including a
// restart and a take-over. Then it revokes each right in turn: the start fails and
// names it.
func (s *secured) testRights(t *testing.T) {
	t.Parallel()
	s.addUser("least", canaryScram)
	w := s.world(t, "least")
	w.createAll(true)
	rights := rightsOf(w, settingRules)
	s.grant(t, "least", rights...)

	a := w.start("a", s.asUser("least")...)
	a.awaitReady()
	all := w.realTraffic()
	send(w, 200, all...)
	w.drained(realInputs, realOutputs)
	a.kill()
	send(w, 200, all...)
	a = w.start("a", s.asUser("least")...)
	b := w.start("b", s.asUser("least")...)
	defer s.silent(t, b)
	a.awaitReady()
	b.awaitReady()
	awaitSharing(t, 2*realPartitions, a, b)
	send(w, 200, all...)
	a.kill()
	send(w, 200, all...)
	w.checkTraffic(all)
	b.stop()

	sample := right{"topic", w.topic("signals.raw"), "Read"}
	for _, r := range rights {
		s.revoke(t, "least", r)
		diagnosed := w.doctor(0, s.asUser("least")...)
		if diagnosed.Code != cli.ExitWrong || !strings.Contains(diagnosed.Stdout, r.String()) {
			t.Errorf("doctor without the right: exit code %d, want %d and %q in\n%s", diagnosed.Code, cli.ExitWrong, r, diagnosed.Stdout)
		}
		if r == sample {
			w.sample("right", notable(diagnosed), cli.ExitWrong)
		}
		ctx, cancel := context.WithTimeout(t.Context(), realDeadline)
		got := execute(ctx, w.environ("a", s.asUser("least")...), "", "run") // in this process, because there are many
		cancel()
		if got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, r.String()) {
			t.Errorf("without the right: exit code %d, want %d and %q in\n%s", got.Code, cli.ExitFailed, r, lastLines(got.Stderr, 5))
		}
		s.grant(t, "least", r)
	}
	send(w, 100, all...)
	a = w.start("a", s.asUser("least")...)
	w.checkTraffic(all)
	a.stop()
}

// testRightsWithdrawn revokes a right of each kind from a running process, which
// stops and names the missing right. When it is granted again, the next start
// continues.
func (s *secured) testRightsWithdrawn(t *testing.T) {
	t.Parallel()
	s.addUser("withdrawn", canaryScram)
	w := s.world(t, "withdrawn")
	w.createAll(true)
	rights := rightsOf(w, settingRules)
	s.grant(t, "withdrawn", rights...)
	all := w.realTraffic()
	for _, r := range []right{
		{"topic", w.topic("signals.raw"), "Read"}, {"topic", w.topic("signals.unique"), "Write"},
		{"group", w.app + "-dedup", "Read"}, {"transactional-id", w.app + "-", "Write"},
	} {
		svc := w.start("a", s.asUser("withdrawn")...)
		svc.awaitReady()
		send(w, 50, all...)
		w.drained(realInputs, realOutputs)
		s.revoke(t, "withdrawn", r)
		send(w, 50, all...)
		if got := svc.failure(); !strings.Contains(got, r.String()) {
			t.Errorf("with the right revoked, the process ended with\n%s\nwant %q in it", got, r)
		}
		s.grant(t, "withdrawn", r)
	}
	svc := w.start("a", s.asUser("withdrawn")...)
	w.checkTraffic(all)
	svc.stop()
}

// testCreateRight: with the right to create topics with its prefix, oncebus creates
// its internal topics.
func (s *secured) testCreateRight(t *testing.T) {
	t.Parallel()
	s.addUser("creator", canaryScram)
	w := s.world(t, "creator")
	w.createAll(false)
	s.grant(t, "creator", rightsOf(w, slices.Concat(settingRules[:2], settingRules[3:]))...)
	for _, op := range []string{"Read", "Write", "DescribeConfigs"} {
		s.grant(t, "creator", right{"topic", w.app + "-", op})
	}
	svc := w.start("a", s.asUser("creator")...)
	if got := svc.failure(); !strings.Contains(got, right{"topic", w.app + "-manifest", "Create"}.String()) {
		t.Errorf("without the right to create, the process ended with\n%s", got)
	}
	s.grant(t, "creator", right{"topic", w.app + "-", "Create"})
	svc = w.start("a", s.asUser("creator")...)
	all := w.realTraffic()
	send(w, 100, all...)
	w.checkTraffic(all)
	svc.stop()
}
