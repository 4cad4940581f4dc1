//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/cmd/oncebus/settings"
	"oncebus/processor"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// TestRealRoll starts the StatefulSet of the chart as processes and treats them as Kubernetes does: probes, SIGTERM and grace period,
// one pod after the other from the highest number down. Meanwhile events and duplicates arrive. A roll for a setting moves no task:
// each pod comes back to its own, within the session timeout, and the others stay ready. So does a pod that crashes. A roll adds a
// route. Every event is emitted once.
func TestRealRoll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, realRoutes)
	w.createTopics(nil, append(slices.Clone(realInputs), "late.raw")...)
	args := append(valuesFile("minimal"), "--set", "kafka.brokers={"+strings.Join(w.seeds, ",")+"}", "--set", "app.id="+w.app,
		"--set", fmt.Sprintf("app.createTopics=true,app.partitions=%d", realPartitions))
	first := render(t, append(args, "--set-file", "routes.file="+w.routes)...)
	set := newStatefulSet(w, first)
	set.create()
	awaitSharing(t, 2*realPartitions, set.services()...)

	all := w.realTraffic()
	stop := w.keepSending(all)
	set.owned = set.tasks()
	set.roll(render(t, append(args, "--set-file", "routes.file="+w.routes, "--set", "log.level=debug")...))
	set.crash(1)
	for _, p := range set.pods {
		if r := p.restores(); r.fromStart > 0 || r.tasks == 0 {
			t.Errorf("pod %s restored %+v: want all from its volume", p.Name, r)
		}
	}

	more := kafkatest.ReplaceFile(t, filepath.Join(w.dir, "more.yaml"), []byte(strings.ReplaceAll(realRoutes+lateRoute, "APP", w.app)))
	second := render(t, append(args, "--set-file", "routes.file="+more)...)
	if checksum := "checksum/routes"; set.object.Spec.Template.Metadata.Annotations[checksum] == one(t, second, "StatefulSet", "").Spec.Template.Metadata.Annotations[checksum] {
		t.Error("a change of the routes file rolls no pod")
	}
	set.owned = nil // another subscription assigns partitions again
	set.roll(second)
	stop()
	late := &traffic{w: w, topic: "late.raw", output: "late.unique", record: webhookRecord, ledger: newLedger()}
	late.ledger.asks = true
	send(w, 200, append(all, late)...)
	w.checkTraffic(all)
	w.drained([]string{"late.raw"}, []string{"late.unique"})
	late.ledger.checkOnce(t, w.output("late.unique"))
	set.remove()
	t.Logf("%d events sent; from the end of a pod to the probe of the next: %s", sent(all), strings.Join(set.unready, ", "))
}

// lateRoute is a route that a roll adds to realRoutes.
const lateRoute = `
  - name: late
    topics: [APP.late.raw]
    key: [{hash: [eventId]}]
    window: 1h
    output: APP.late.unique
    headers: [route, key, verdict]
    dead_letter: APP.dead-letter
`

// keepSending sends events and duplicates until stop is called, which checks that all were acknowledged. Until then only it may use
// the traffic and the world's random numbers.
func (w *world) keepSending(all []*traffic) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			for _, tr := range all {
				if err := w.producer.ProduceSync(context.WithoutCancel(ctx), tr.chunk(10)...).FirstErr(); err != nil {
					ended <- err
					return
				}
			}
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-ticker.C:
			}
		}
	}()
	w.t.Cleanup(cancel)
	return func() {
		w.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			w.t.Fatalf("produce during the roll: %v", err)
		}
	}
}

// statefulSet does what the StatefulSet controller and the kubelet do.
type statefulSet struct {
	w       *world
	machine *machine
	object  object
	pods    []*pod
	session time.Duration     // how long the group keeps the tasks of a silent pod
	owned   map[string]string // the pod of each task, which no replacement may change; nil: it may
	unready []string          // how long each replacement took
}

// pod is one with its process.
type pod struct {
	*service
	container *container
	grace     time.Duration
	started   bool // the startup probe has succeeded
	ready     bool
	ending    bool                 // it was stopped or killed
	lapses    int                  // how often it was ready no longer
	due       map[string]time.Time // of the next probe
	failed    map[string]int       // consecutive failures, by probe
}

func newStatefulSet(w *world, objects []object) *statefulSet {
	w.t.Helper()
	s := &statefulSet{w: w, machine: newMachine(w.t, objects), object: one(w.t, objects, "StatefulSet", "")}
	s.pods = make([]*pod, *s.object.Spec.Replicas)
	return s
}

func (s *statefulSet) services() (list []*service) {
	for _, p := range s.pods {
		list = append(list, p.service)
	}
	return list
}

// entrypoint matches the image's command.
var entrypoint = regexp.MustCompile(`(?m)^ENTRYPOINT \["(.+)"\]$`)

// start starts the pod of a number, with its volume and its name.
func (s *statefulSet) start(ordinal int) {
	t := s.w.t
	t.Helper()
	name := fmt.Sprintf("%s-%d", s.object.Metadata.Name, ordinal)
	spec := &s.object.Spec.Template.Spec
	c := &spec.Containers[0]
	image := entrypoint.FindStringSubmatch(readDockerfile(t))
	if image == nil || len(c.Command) > 0 && !slices.Equal(c.Command, image[1:]) {
		t.Fatalf("the command is %v, the image starts %v", c.Command, image)
	}
	dirs := s.machine.mount(name, spec, s.object.Spec.VolumeClaimTemplates)
	environ := s.machine.environ(name, c, dirs)
	read, err := settings.Parse(environ)
	if err != nil {
		t.Fatal(err)
	}
	s.session = read.Processor.SessionTimeout
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program.Shared(t), c.Args...)
	// A pod has an address of its own, a process here a port of its own.
	cmd.Env = slices.Concat(environ, []string{
		"ONCEBUS_ADMIN_ADDR=127.0.0.1:0",
		// Else a process with the race detector exits a second later.
		"GORACE=halt_on_error=1 atexit_sleep_ms=0",
	})
	s.pods[ordinal] = &pod{
		service: s.w.launch(name, cmd), container: c, grace: time.Duration(spec.TerminationGracePeriodSeconds) * time.Second,
		due: map[string]time.Time{}, failed: map[string]int{},
	}
}

// create starts all pods, as the pod management policy says, and waits until they are ready.
func (s *statefulSet) create() {
	s.w.t.Helper()
	for i := range s.pods {
		s.start(i)
		if s.object.Spec.PodManagementPolicy != "Parallel" {
			s.await(s.pods[i])
		}
	}
	s.await(s.pods...)
}

// await waits until pods are ready, and probes all of them meanwhile.
func (s *statefulSet) await(pods ...*pod) {
	s.w.t.Helper()
	s.until("the pods are ready", func() bool {
		return !slices.ContainsFunc(pods, func(p *pod) bool { return !p.ready })
	})
}

// until probes the pods until reached holds.
func (s *statefulSet) until(what string, reached func() bool) {
	s.w.t.Helper()
	eventually(s.w.t, what, func(ctx context.Context) error {
		for _, p := range s.pods {
			if err := p.look(ctx); err != nil {
				return kafkatest.Fatal(err)
			}
		}
		if !reached() {
			return errNotYet
		}
		return nil
	})
}

// look makes the probes that are due, as the kubelet does. It returns an error where the kubelet would restart the container.
func (p *pod) look(ctx context.Context) error {
	if p.ending {
		return nil
	}
	if err := p.Ended(); err != nil {
		return err
	}
	if !p.started {
		ok, err := p.probe(ctx, "startup", &p.container.StartupProbe)
		p.started = ok
		return err
	}
	if _, err := p.probe(ctx, "liveness", &p.container.LivenessProbe); err != nil {
		return err
	}
	ok, err := p.probe(ctx, "readiness", &p.container.ReadinessProbe)
	if err != nil && p.ready {
		p.t.Logf("pod %s is no longer ready: %v", p.Name, err)
		p.ready, p.lapses = false, p.lapses+1
	}
	p.ready = p.ready || ok
	return nil
}

// probe makes a probe if it is due. It returns whether it was made and succeeded, and an error at the threshold of failures.
func (p *pod) probe(ctx context.Context, kind string, pr *probe) (ok bool, err error) {
	if time.Now().Before(p.due[kind]) {
		return false, nil
	}
	p.due[kind] = time.Now().Add(time.Duration(pr.PeriodSeconds) * time.Second)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(pr.TimeoutSeconds)*time.Second)
	defer cancel()
	status, body, err := p.Get(ctx, pr.HTTPGet.Path)
	if err == nil && status == http.StatusOK {
		p.failed[kind] = 0
		return true, nil
	}
	if p.failed[kind]++; p.failed[kind] < pr.FailureThreshold {
		return false, nil
	}
	if err == nil {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	return false, fmt.Errorf("pod %s: the %s probe failed %d times: %w", p.Name, kind, p.failed[kind], err)
}

// roll replaces the pods by those of new objects, from the highest number down, each after the one before is ready.
func (s *statefulSet) roll(objects []object) {
	s.w.t.Helper()
	s.machine.apply(objects)
	s.object = one(s.w.t, objects, "StatefulSet", "")
	for i, p := range slices.Backward(s.pods) {
		s.replace(i, func() { s.terminate(p) })
	}
}

// crash kills a pod's process. The kubelet starts it again.
func (s *statefulSet) crash(ordinal int) {
	s.w.t.Helper()
	s.replace(ordinal, s.pods[ordinal].kill)
}

// replace ends a pod, starts its successor and waits until that is ready.
func (s *statefulSet) replace(ordinal int, end func()) {
	t := s.w.t
	t.Helper()
	judged := map[*pod]int{}
	for _, p := range s.pods {
		judged[p] = p.judged()
	}
	began := time.Now()
	s.pods[ordinal].ending = true
	end()
	s.start(ordinal)
	s.await(s.pods[ordinal])
	took := time.Since(began)
	s.unready = append(s.unready, fmt.Sprintf("%s %v", s.pods[ordinal].Name, took.Round(10*time.Millisecond)))
	if took > s.session {
		t.Errorf("pod %s was not ready for %v, the group keeps its tasks for %v", s.pods[ordinal].Name, took, s.session)
	}
	if s.owned == nil {
		return
	}
	for i, p := range s.pods {
		if i != ordinal && (p.lapses > 0 || p.judged() == judged[p]) {
			t.Errorf("pod %s: during the replacement of pod %d it was not ready %d times, and judged %d events", p.Name, ordinal, p.lapses, p.judged()-judged[p])
		}
	}
	// A leader that comes back may make the group assign its partitions again, to the same members.
	eventually(t, "every pod has the tasks that it had", func(context.Context) error {
		if now := s.tasks(); !maps.Equal(now, s.owned) {
			return fmt.Errorf("the tasks are with %v, they were with %v", now, s.owned)
		}
		return nil
	})
}

// terminate ends a pod as the kubelet does: SIGTERM, and SIGKILL after the grace period, which must not be needed.
func (s *statefulSet) terminate(p *pod) {
	t := s.w.t
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.Process.Process.Stop(p.grace) }()
	s.until("pod "+p.Name+" ends", func() bool { return !p.Running() })
	if err := <-ended; err != nil {
		t.Errorf("pod %s: %v", p.Name, err)
	} else if code := p.exited(); code != 0 {
		t.Errorf("pod %s ended with exit code %d at SIGTERM", p.Name, code)
	}
}

// remove ends all pods at once.
func (s *statefulSet) remove() {
	s.w.t.Helper()
	for _, p := range s.pods {
		p.ending = true
		s.terminate(p)
	}
}

// judged returns how many events the pod's process has judged.
func (p *pod) judged() (n int) {
	p.t.Helper()
	for _, count := range p.events() {
		n += count
	}
	return n
}

// tasks returns the pod of each task.
func (s *statefulSet) tasks() map[string]string {
	t := s.w.t
	t.Helper()
	owners := map[string]string{}
	for _, p := range s.pods {
		body, err := p.Page(t.Context(), "/state")
		if err != nil {
			t.Fatal(err)
		}
		var state processor.State
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		for _, task := range state.Tasks {
			owners[task.Task] = p.Name
		}
	}
	return owners
}
