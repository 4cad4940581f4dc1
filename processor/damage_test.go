package processor_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/restore"
	"oncebus/state"
)

// lives has three copies of an instance's state directory: half-way, as a kill left it, and as a clean stop left it.
type lives struct{ half, killed, stopped string }

// harmed is a bench on which a test is about to damage the state of task 0.
type harmed struct {
	*bench
	cfg   processor.Config
	lives lives
	dir   string // of the task, to be injured
}

// newHarmed runs an instance over some events and keeps copies of its state. It copies the files of the kill while
// the instance is idle.
func newHarmed(t *testing.T) *harmed {
	t.Helper()
	h := &harmed{bench: newBench(t, benchRoutes)}
	h.cfg = h.config("one")
	h.cfg.State.FlushRows = 40
	h.cfg.SessionTimeout = 30 * time.Second // a busy machine must not close the files that are copied
	h.lives = lives{filepath.Join(t.TempDir(), "half"), filepath.Join(t.TempDir(), "killed"), filepath.Join(t.TempDir(), "stopped")}
	i := h.ready(h.start(h.cfg))
	h.produce(batch("a", 400)...)
	h.drain(i, "signals.raw")
	h.copyState(h.cfg.StateDir, h.lives.half)
	h.produce(batch("b", 400)...)
	h.drain(i, "signals.raw")
	h.copyState(h.cfg.StateDir, h.lives.killed)
	must(t, i.stop())
	h.copyState(h.cfg.StateDir, h.lives.stopped)
	h.dir = i.Stores().DirOf(app.TaskID{Topic: "app-repartition", Partition: 0})
	return h
}

// copyState copies a state directory as a kill would leave it. If no file differs after the copy, no file has changed
// between the reading of the last file and the comparison of the first.
func (b *bench) copyState(from, to string) {
	b.t.Helper()
	b.wait("the files to come to rest", func() bool {
		must(b.t, os.RemoveAll(to))
		err := os.CopyFS(to, os.DirFS(from))
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
		must(b.t, err)
		same := true
		must(b.t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			was, wasErr := os.ReadFile(filepath.Join(to, strings.TrimPrefix(path, from)))
			is, isErr := os.ReadFile(path)
			same = same && wasErr == nil && isErr == nil && bytes.Equal(was, is) // else it came or went
			return nil
		}))
		return same
	})
}

// use replaces the present state by the state of another life.
func (h *harmed) use(life string) { h.copyState(life, h.cfg.StateDir) }

// either stands for damage that may go unnoticed because what is left is the state of an earlier time, for example a
// lost end of a log that Badger only appends to.
const either = -1

// proceed starts on the damaged state and expects every event once, as if the state were undamaged.
func (h *harmed) proceed(quarantined float64) *instance {
	h.t.Helper()
	i := h.ready(h.start(h.cfg))
	n := testutil.ToFloat64(i.RestoreMetrics().Quarantined)
	if quarantined == either {
		quarantined = min(n, 1)
	}
	if n != quarantined {
		h.t.Errorf("%v stores quarantined, want %v", n, quarantined)
	}
	aside, err := filepath.Glob(h.dir + ".quarantine-*")
	must(h.t, err)
	if said := strings.Count(h.logs.String(), "local store quarantined"); float64(said) != quarantined || float64(len(aside)) > quarantined {
		h.t.Errorf("%d log lines, %v", said, aside)
	}
	h.produce(batch("b", 440)...)
	h.produce(batch("a", 440)...)
	h.drain(i, "signals.raw")
	assertOut(h.t, h.bench, batch("a", 440), batch("b", 440))
	return i
}

// files returns the task's files of a kind.
func (h *harmed) files(kind string) []string {
	h.t.Helper()
	all, err := filepath.Glob(filepath.Join(h.dir, "*"+kind))
	must(h.t, err)
	return all
}

// TestEveryDamageEndsInARebuild damages the files of one task, after a kill and after a clean stop, in seeded places.
// It expects that nothing is lost and nothing comes twice. The tests of package state damage hundreds of places; this
// test shows what the processor makes of the damage.
func TestEveryDamageEndsInARebuild(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	seed := r.Int64
	for name, c := range map[string]struct {
		killed      bool
		harm        func(t *testing.T, h *harmed)
		quarantined float64
	}{
		"tables cut":          {false, onFiles(".sst", cutAt(seed())), 1},
		"tables flipped":      {false, onFiles(".sst", flipAt(seed())), 1},
		"tables gone":         {false, onFiles(".sst", os.Remove), 1},
		"pages flipped":       {false, onFiles(".vlog", flipMany(seed())), 1},
		"manifest cut":        {true, onFiles("MANIFEST", func(path string) error { return os.Truncate(path, 3) }), 1},
		"manifest cut later":  {true, onFiles("MANIFEST", cutAt(seed())), either},
		"manifest gone":       {false, onFiles("MANIFEST", os.Remove), 1},
		"key registry zeroed": {false, onFiles("KEYREGISTRY", zero), 1},
		"status gone":         {false, onFiles("STATUS", os.Remove), 1},
		"status cut":          {true, onFiles("STATUS", func(path string) error { return os.Truncate(path, 20) }), 1},
		"discard gone":        {true, onFiles("DISCARD", os.Remove), 0}, // only hints
		"all gone":            {false, func(t *testing.T, h *harmed) { must(t, os.RemoveAll(h.dir)) }, 0},
		"of another partition": {false, func(t *testing.T, h *harmed) {
			must(t, os.RemoveAll(h.dir))
			must(t, os.CopyFS(h.dir, os.DirFS(strings.TrimSuffix(h.dir, "0")+"3")))
		}, 1},
		"of another cluster": {false, func(t *testing.T, h *harmed) {
			other := newHarmed(t)
			must(t, os.RemoveAll(h.dir))
			must(t, os.CopyFS(h.dir, os.DirFS(other.dir)))
		}, 1},
		"from the past":          {false, func(_ *testing.T, h *harmed) { h.use(h.lives.half) }, 0},
		"host stopped":           {true, func(_ *testing.T, h *harmed) { h.stopHost(h.cfg, "another") }, 4},
		"log flipped":            {true, onFiles(".mem", flipMany(seed())), either},
		"log cut":                {true, onFiles(".mem", cutAt(seed())), either},
		"ahead of the changelog": {false, func(_ *testing.T, h *harmed) { h.move(1 << 40) }, 1},
	} {
		if testing.Short() && r.IntN(3) > 0 {
			continue // the order of a map differs, so each run takes others
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarmed(t)
			if c.killed {
				h.use(h.lives.killed)
			}
			c.harm(t, h)
			h.proceed(c.quarantined)
		})
	}
}

// onFiles applies harm to every file of a kind. At least one such file must exist.
func onFiles(kind string, harm func(path string) error) func(*testing.T, *harmed) {
	return func(t *testing.T, h *harmed) {
		files := h.files(kind)
		if len(files) == 0 {
			t.Fatalf("no file %s", kind)
		}
		for _, path := range files {
			must(t, harm(path))
		}
	}
}

// content returns the content of a file without the zeros at its end.
func content(path string) ([]byte, int, error) {
	b, err := os.ReadFile(path)
	used := len(b)
	for used > 0 && b[used-1] == 0 {
		used--
	}
	return b, max(1, used), err
}

func cutAt(seed int64) func(string) error {
	return func(path string) error {
		_, used, err := content(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, rand.New(rand.NewPCG(uint64(seed), 1)).Int64N(int64(used)-1))
	}
}

func flip(path string, seed int64, n int) error {
	b, used, err := content(path)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	for range n {
		b[r.IntN(used)] ^= 0x41
	}
	return os.WriteFile(path, b, 0o600)
}

func flipAt(seed int64) func(string) error {
	return func(path string) error { return flip(path, seed, 1) }
}

func flipMany(seed int64) func(string) error {
	return func(path string) error { return flip(path, seed, 1000) }
}

func zero(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	clear(b)
	return os.WriteFile(path, b, 0o600)
}

// move makes the state of task 0 claim that the task has read the changelog up to another position.
func (h *harmed) move(position int64) {
	h.t.Helper()
	host, err := state.NewHost(h.cfg.State, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(h.t, err)
	meta, err := h.admin.Metadata(context.Background(), "app-repartition-changelog")
	must(h.t, err)
	named := &app.App{Topology: &app.Topology{App: "app", Cluster: meta.Cluster, Topics: map[string]app.Topic{
		"app-repartition-changelog": {ID: meta.Topics["app-repartition-changelog"].ID},
	}}}
	store, err := host.Open(h.dir, restore.StoreIdentity(named, app.TaskID{Topic: "app-repartition", Partition: 0}))
	must(h.t, err)
	must(h.t, store.Apply(position, store.Checkpoint()))
	must(h.t, store.Close())
	must(h.t, host.Close())
}
