//go:build unix

package main_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/golden"

	main "oncebus/cmd/oncebus"
)

// doctorRoutes are the routes of the page's samples.
const doctorRoutes = `
routes:
  - name: signals
    topics: [APP.signals.raw]
    key: [{field: traceId}]
    window: 24h
    output: APP.signals.unique
    dead_letter: APP.dead-letter
`

// doctor runs 'oncebus doctor' with the clock of this machine that much ahead.
func (w *world) doctor(ahead time.Duration, settings ...string) clitest.Result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	var stdout, stderr clitest.Buffer
	code := main.Commands().Run(ctx, []string{"doctor"}, cli.Process{
		Environ: w.environ("a", settings...), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
		Now: func() time.Time { return time.Now().Add(ahead) },
	})
	return withFreeDisk(clitest.Result{Code: code, Stdout: stdout.String(), Stderr: stderr.String()})
}

var (
	fullBrokerDisk     = regexp.MustCompile(`(?m)^at risk    disks         broker 1: the disk of \S+ has \S+ % free; .*\n.* -> free space, or add a disk$`)
	fullBrokerDiskLine = regexp.MustCompile(`"check":"disks".*"finding":"broker 1: the disk of \S+ has \S+ % free; `)
	atRisk             = regexp.MustCompile(`(?m)^at risk `)
	verdictAtRisk      = regexp.MustCompile(`(?m)^works, at risk: .*$`)
)

// withFreeDisk returns the report as it is where the broker's disk has space. Other
// programs fill the disk of the machine that runs the tests.
func withFreeDisk(got clitest.Result) clitest.Result {
	if !fullBrokerDisk.MatchString(got.Stdout) {
		return got
	}
	got.Stdout = fullBrokerDisk.ReplaceAllString(got.Stdout, "ok         disks         every disk of the brokers (1) has at least 10 % free")
	switch left := len(atRisk.FindAllString(got.Stdout, -1)); {
	case got.Code != cli.ExitFailed: // something else fails
	case left == 0:
		got.Code = cli.ExitStopped
		got.Stdout = verdictAtRisk.ReplaceAllString(got.Stdout, "works")
	case left == 1:
		got.Stdout = verdictAtRisk.ReplaceAllString(got.Stdout, "works, at risk: 1 finding")
	default:
		got.Stdout = verdictAtRisk.ReplaceAllString(got.Stdout, fmt.Sprintf("works, at risk: %d findings", left))
	}
	return got
}

// What differs between two runs of the samples, with what the page has.
var doctorVaries = []struct {
	pattern *regexp.Regexp
	to      string
}{
	{regexp.MustCompile(`cluster [\w-]{22}`), "cluster 5L6g3nShT-eMCtK--X86sw"},
	{regexp.MustCompile(`disk of \S+ has \d+ MiB free, tasks pause below \d+ MiB`), "disk of /var/lib/oncebus has 48609 MiB free, tasks pause below 9326 MiB"},
	{regexp.MustCompile(`raw \S+ ago`), "raw 2s ago"},
	{regexp.MustCompile(`(9m5\ds|10m\ds) (ahead|behind)`), "10m0s $2"},
}

// sample compares the output of doctor with its section of OPERATIONS.md. A cluster that
// the tests did not start has other settings.
func (w *world) sample(name string, got clitest.Result, code int) {
	w.t.Helper()
	if got.Code != code || got.Stderr != "" {
		w.t.Errorf("%s: exit code %d, want %d\n%s%s", name, got.Code, code, got.Stdout, got.Stderr)
		return
	}
	if w.external {
		return
	}
	text := strings.ReplaceAll(strings.ReplaceAll(got.Stdout, w.app+".", ""), w.app+"-", "oncebus-")
	for _, v := range doctorVaries {
		text = v.pattern.ReplaceAllString(text, v.to)
	}
	golden.AssertSection(w.t, filepath.Join(moduleRoot, "deployments", "OPERATIONS.md"), "doctor "+name, "```text\n"+text+"```\n")
}

// notable returns the findings of a report that change its verdict, and the verdict.
func notable(got clitest.Result) clitest.Result {
	var kept strings.Builder
	keep := false
	for line := range strings.Lines(got.Stdout) {
		if !strings.HasPrefix(line, " ") { // else it belongs to the line before
			keep = !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "note ") && !strings.HasPrefix(line, "unchecked ")
		}
		if keep {
			kept.WriteString(line)
		}
	}
	got.Stdout = kept.String()
	return got
}

// linesOf returns the findings of some checks, and the verdict.
func linesOf(got clitest.Result, checks ...string) clitest.Result {
	var kept strings.Builder
	keep := false
	for line := range strings.Lines(got.Stdout) {
		if !strings.HasPrefix(line, "  ") {
			keep = !strings.Contains(line, "  ") || slices.ContainsFunc(checks, func(check string) bool { return strings.Contains(line, " "+check+" ") })
		}
		if keep {
			kept.WriteString(line)
		}
	}
	got.Stdout = kept.String()
	return got
}

// alter changes one setting of a topic, and waits for the broker to apply it: the
// controller responds earlier.
func (w *world) alter(topic, name, value string) {
	w.t.Helper()
	altered, err := w.admin.AlterTopicConfigs(w.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: kmsg.StringPtr(value)}}, topic)
	if err == nil {
		_, err = altered.On(topic, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, topic+" has "+name+"="+value, func(ctx context.Context) error {
		described, err := w.admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		configs, err := described.On(topic, func(r *kadm.ResourceConfig) error { return r.Err })
		if err != nil {
			return err
		}
		for _, c := range configs.Configs {
			if c.Key == name && c.MaybeValue() == value {
				return nil
			}
		}
		return errNotYet
	})
}

// TestRealDoctorOnOneBroker: doctor and the process name the setting of the broker that refuses their session timeout. A topic that requires
// more replicas in sync than it has takes records, from Kafka 4.0 on.
func TestRealDoctorOnOneBroker(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t, kafkatest.WithProperty("group.min.session.timeout.ms", "6000"))
	w := newWorldAt(t, doctorRoutes, broker.Seeds(), broker.Admin(), broker.External())
	w.createTopics([]string{"min.insync.replicas=2"}, "signals.raw", "signals.unique", "dead-letter")
	const refused = "the brokers refuse ONCEBUS_SESSION_TIMEOUT=1s: group.min.session.timeout.ms is 6s, group.max.session.timeout.ms is 30m0s"
	if got := w.doctor(0, "SESSION_TIMEOUT=1s"); got.Code != cli.ExitWrong || !strings.Contains(got.Stdout, refused) {
		t.Errorf("session timeout: %+v", got)
	}
	svc := w.start("a", "SESSION_TIMEOUT=1s")
	if code := svc.exited(); code != cli.ExitFailed || !strings.Contains(svc.text(), refused) {
		t.Errorf("the process ended with exit code %d:\n%s", code, svc.text())
	}
	got := w.doctor(0, "SESSION_TIMEOUT=10s")
	if text := "topic " + w.topic("signals.raw") + " has min.insync.replicas=2 and 1 replicas: all brokers take that for 1"; got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, text) {
		t.Errorf("%+v, want %q", got, text)
	}
	w.produce(&kgo.Record{Topic: w.topic("signals.raw"), Value: []byte(`{"traceId":"t-1"}`)})
}

// TestRealDoctor: what 'oncebus doctor' says before the first start, while the service
// runs, with clocks that differ, and with a wrong setting. The page has these samples.
func TestRealDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, doctorRoutes)
	if got := w.doctor(0, "CREATE_TOPICS=false"); got.Code != cli.ExitWrong || !strings.Contains(got.Stdout, "topic "+w.topic("signals.raw")+" does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true") {
		t.Errorf("without topics: %+v", got)
	}
	w.createTopics(nil, "signals.raw", "signals.unique", "dead-letter")
	if got := w.doctor(0); got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, "a start creates "+w.app+"-manifest") || w.exists(w.app+"-manifest") {
		t.Errorf("before the first start: %+v, the manifest exists: %v", got, w.exists(w.app+"-manifest"))
	}
	svc := w.start("a", "CREATE_TOPICS=false")
	svc.awaitReady()
	w.produce(&kgo.Record{Topic: w.topic("signals.raw"), Value: []byte(`{"traceId":"t-1"}`)})
	w.taken([]string{w.topic("signals.raw")})

	w.sample("healthy", w.doctor(0), cli.ExitStopped)
	w.sample("clock", notable(w.doctor(10*time.Minute)), cli.ExitFailed)
	if got := w.doctor(-10 * time.Minute); got.Code != cli.ExitFailed || !strings.Contains(got.Stdout, "behind the brokers") {
		t.Errorf("with a clock that is slow: %+v", got)
	}
	w.alter(w.app+"-repartition-changelog", "retention.bytes", "1000000")
	w.sample("setting", notable(w.doctor(0)), cli.ExitWrong)
	w.alter(w.app+"-repartition-changelog", "retention.bytes", "-1")
	w.produce(&kgo.Record{Topic: w.topic("signals.raw"), Value: []byte(`{"traceId":"t-2"}`), Timestamp: time.Now().Add(30 * time.Minute)})
	if got := w.doctor(0); got.Code != cli.ExitFailed || !regexp.MustCompile(`the newest event is (29|30)m\d+s ahead of the brokers`).MatchString(got.Stdout) {
		t.Errorf("with an event from the future: %+v", got)
	}
	svc.stop()
	for line := range strings.Lines(svc.text()) {
		if strings.Contains(line, `"level":"WARN"`) && !fullBrokerDiskLine.MatchString(line) {
			t.Errorf("the service warned: %s", line)
		}
	}
}
