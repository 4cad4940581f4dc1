package processor_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/move"
	"oncebus/processor/security"
)

// unplayed are the start errors that no test produces on a broker, each by a part of its text, with the reason.
var unplayed = map[string]string{
	"routes file: ":                "processor.New has refused the file without its secret, and so has the diagnosis",
	"ONCEBUS_STATE_DIR: ":          "the disk of a directory that was just made cannot be read: TestDiagnosis judges it",
	"is on a network file system":  "TestDiagnosis and TestNetworkFileSystemIsRefused",
	"has never started":            "somebody deletes the manifest while a start edits it",
	"is in use by another process": "the running service locks it, which is right while a diagnosis looks",
}

// startErrors are situations in which a start is refused, in addition to changedPromises. They happen to an app of
// this build.
func startErrors() []startError {
	secretRoute := strings.NewReplacer("signals", "alerts", "routes:\n", "", "    dead_letter", "    secret: true\n    dead_letter").Replace(benchRoutes)
	row := func(key, value string) func(*bench, *processor.Config) {
		return func(b *bench, _ *processor.Config) {
			b.produce(&kgo.Record{Topic: "app-manifest", Key: []byte(key), Value: []byte(value)})
		}
	}
	link := func(at ...string) func(*bench, *processor.Config) {
		return func(b *bench, cfg *processor.Config) {
			at := filepath.Join(append([]string{cfg.StateDir}, at...)...)
			must(b.t, os.RemoveAll(at))
			must(b.t, os.Symlink(b.t.TempDir(), at))
		}
	}
	moved := func(then func(*bench)) func(*bench, *processor.Config) {
		return func(b *bench, cfg *processor.Config) {
			i := b.ready(b.start(*cfg))
			b.move(move.Options{Partitions: 3, Limit: time.Minute, By: "tester"})
			b.awaitGeneration(i, 2)
			must(b.t, i.stop())
			then(b)
		}
	}
	return []startError{
		{
			name: "topic of a former generation deleted", routes: benchRoutes, change: moved(func(b *bench) { b.deleteTopic("app-repartition") }),
			want: []string{"topic app-repartition was deleted before the app had forwarded all of its records"},
		},
		{
			name: "topic of a former generation recreated", routes: benchRoutes, change: moved(func(b *bench) { b.recreate("app-repartition") }),
			want: []string{"records that were not forwarded are lost; run: oncebus move --finish"},
		},
		{
			name: "a change to confirm", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(strings.Replace(benchRoutes, "window: 1h", "window: 2h", 1))
			},
			want: []string{"differs from route set 1, which app app has in force; run: oncebus apply --yes", "window 1h -> 2h"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "a change that is refused", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(strings.Replace(benchRoutes, "field: id", "field: other", 1))
			},
			want: []string{"run: oncebus plan", "--forget-keys"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "a set in force needs a secret", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) {
				with := *cfg
				with.KeySecret = security.Secret("sixteen bytes...")
				b.useRoutes(benchRoutes + secretRoute)
				must(b.t, b.ready(b.start(with)).stop())
				b.useRoutes(benchRoutes)
			},
			want: []string{"route set 2: ", "ONCEBUS_KEY_SECRET"},
			undo: func(_ *bench, cfg *processor.Config) { cfg.KeySecret = security.Secret("sixteen bytes...") },
		},
		{
			name: "a later level", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.doctor("app", func(m *app.Manifest) { m.Level = 99 }) },
			want:   []string{"app app is at level 99", "run the build that raised it, or a later one"},
		},
		{
			name: "a later level, with another file", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.doctor("app", func(m *app.Manifest) { m.Level = 99 })
				b.useRoutes(strings.Replace(benchRoutes, "window: 1h", "window: 2h", 1))
			},
			want: []string{"app app is at level 99", "run the build that raised it, or a later one"},
		},
		{
			name: "too many namespaces", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.doctor("app", func(m *app.Manifest) {
					for range 256 {
						m.Namespaces = append(m.Namespaces, m.Namespaces[0])
					}
				})
			},
			want: []string{"257 namespaces were used over time", "use another ONCEBUS_APP_ID"},
		},
		{
			name: "route set gone", routes: benchRoutes, change: row("set", `{"number":7}`),
			want: []string{"route set 7 is in force, but its row is gone from the manifest topic: restore it"},
		},
		{
			name: "route set of a later build", routes: benchRoutes, change: row("set/1", `{"number":1,"text":"routes: [{later: 1}]"}`),
			want: []string{"this build cannot read route set 1 of the app: run the build that wrote it"},
		},
		{
			name: "shadow at level 1", routes: benchRoutes, level1: true,
			change: func(b *bench, _ *processor.Config) { b.useRoutes(shadowRoutes) },
			want:   []string{"app is at level 1, and shadow needs level 2", "run oncebus finalize"},
			undo:   func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "quota at level 1", routes: benchRoutes, level1: true,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(benchRoutes + "    tenant: {field: tenant}\n    quota: {keys: 40}\n")
			},
			want: []string{"app is at level 1, and quota needs level 2", "run oncebus finalize"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "small dead-letter topic", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.alter("dead", "max.message.bytes", "100") },
			want:   []string{"dead-letter topic dead has max.message.bytes=100", "set it to at least"},
			undo:   func(b *bench, _ *processor.Config) { b.alter("dead", "max.message.bytes", "100000") },
		},
		{
			name: "internal topic with a retention", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.alter("app-repartition", "retention.ms", "1") },
			want:   []string{"internal topic app-repartition has retention.ms=1, it must be -1: alter it with kafka-configs.sh"},
			undo:   func(b *bench, _ *processor.Config) { b.alter("app-repartition", "retention.ms", "-1") },
		},
		{
			name: "changelog without delete", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) { b.alter("app-repartition-changelog", "cleanup.policy", "compact") },
			want:   []string{"changelog app-repartition-changelog has cleanup.policy=compact, it must be compact,delete"},
			undo: func(b *bench, _ *processor.Config) {
				b.alter("app-repartition-changelog", "cleanup.policy", "compact,delete")
			},
		},
		{
			name: "session timeout", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.withBrokerSettings(map[string]string{"group.min.session.timeout.ms": "60000", "group.max.session.timeout.ms": "1800000"})
			},
			want: []string{"the brokers refuse ONCEBUS_SESSION_TIMEOUT=6s", "set ONCEBUS_SESSION_TIMEOUT to a time between them"},
			undo: func(_ *bench, cfg *processor.Config) { cfg.SessionTimeout = time.Minute },
		},
		{
			name: "a full disk", routes: benchRoutes,
			change: func(_ *bench, cfg *processor.Config) {
				cfg.Disk.MinFreeBytes = 1 << 60
			},
			want: []string{"a start needs", "free space, or set ONCEBUS_STATE_DIR to another disk"},
			undo: func(_ *bench, cfg *processor.Config) { cfg.Disk.MinFreeBytes = 0 },
		},
		{
			name: "a linked state directory of the app", routes: benchRoutes, change: link("app"),
			want: []string{"is a symbolic link: replace it by the directory or file itself, or delete it"},
		},
		{
			name: "a linked lock", routes: benchRoutes, change: link("LOCK"),
			want: []string{"LOCK is a symbolic link: delete it"},
		},
		{
			name: "a state directory of another user", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) { b.giveAway(filepath.Join(cfg.StateDir, "app")) },
			want:   []string{"belongs to user 4242", "chown it, or delete it"},
		},
		{
			name: "a state directory below a file", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) {
				file := filepath.Join(cfg.StateDir, "file")
				must(b.t, os.WriteFile(file, nil, 0o600))
				cfg.StateDir = filepath.Join(file, "below")
			},
			want: []string{"create the state directory: ", "set ONCEBUS_STATE_DIR to a local disk"},
		},
		{
			name: "a state directory that is a file", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) {
				cfg.StateDir = filepath.Join(cfg.StateDir, "file")
				must(b.t, os.WriteFile(cfg.StateDir, nil, 0o600))
			},
			want: []string{"create the state directory: ", "set ONCEBUS_STATE_DIR to a local disk"},
		},
		{
			name: "missing topics", routes: benchRoutes,
			change: func(b *bench, cfg *processor.Config) { b.deleteTopic("signals.unique"); cfg.CreateTopics = false },
			want:   []string{"topic signals.unique does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true"},
			undo:   func(_ *bench, cfg *processor.Config) { cfg.CreateTopics = true },
		},
		{
			name: "topics that the brokers refuse", routes: benchRoutes,
			change: func(b *bench, _ *processor.Config) {
				b.deleteTopic("signals.unique")
				b.refuseTopics(kerr.PolicyViolation, func(string, map[string]string) string { return "cleanup.policy is not allowed" })
			},
			want: []string{"create topic signals.unique: ", "permit it, or create the topic with other settings: kafka-topics.sh"},
		},
		{
			name: "an internal topic in the routes", routes: benchRoutes, level1: true,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(strings.Replace(benchRoutes, "signals.unique", "app-repartition", 1))
			},
			want: []string{"routes name topic app-repartition, which is internal to app app", "use another topic or ONCEBUS_APP_ID"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "two internal topics of one name", routes: benchRoutes, level1: true,
			change: func(b *bench, _ *processor.Config) {
				b.useRoutes(benchRoutes + strings.NewReplacer("signals.raw", "repartition", "signals", "keyed", "routes:\n", "").Replace(keyedRoutes))
			},
			want: []string{"two internal topics would have the name app-repartition-changelog: rename a prepartitioned topic"},
			undo: func(b *bench, _ *processor.Config) { b.useRoutes(benchRoutes) },
		},
		{
			name: "a compacted outcomes topic", routes: fmt.Sprintf(claimRoutes, "reject"), inputs: []string{"ops.raw"},
			change: func(b *bench, _ *processor.Config) { b.alter("ops.outcomes", "cleanup.policy", "compact") },
			want:   []string{"outcomes topic ops.outcomes has cleanup.policy=compact", "it must be delete: alter it with kafka-configs.sh"},
			undo:   func(b *bench, _ *processor.Config) { b.alter("ops.outcomes", "cleanup.policy", "delete") },
		},
	}
}

// giveAway gives a file to another user, which only root may do.
func (b *bench) giveAway(path string) {
	b.t.Helper()
	if os.Geteuid() != 0 {
		b.t.Skip("only root may give files away")
	}
	must(b.t, os.Chown(path, 4242, -1))
}

// verbs matches the verbs of a format string.
var verbs = regexp.MustCompile(`%[-+ #0-9.]*[a-zA-Z%]`)

// startErrorFormats returns the formats of the errors that end a start, by their place in the source: all errors in
// the functions that the roots of a start call, within the package of each root.
func startErrorFormats(t *testing.T) map[string]string {
	t.Helper()
	formats := map[string]string{}
	for dir, roots := range map[string][]string{"app": {"SetUp", "CheckCoordination"}, "restore": {"Lock"}} {
		set, declared := token.NewFileSet(), map[string][]*ast.FuncDecl{}
		packages, err := parser.ParseDir(set, dir, func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }, 0) //nolint:staticcheck // no build tags, no types
		must(t, err)
		for _, p := range packages {
			ast.Inspect(p, func(n ast.Node) bool {
				if f, ok := n.(*ast.FuncDecl); ok && f.Body != nil {
					declared[f.Name.Name] = append(declared[f.Name.Name], f)
				}
				return true
			})
		}
		seen := map[*ast.FuncDecl]bool{}
		for todo := roots; len(todo) > 0; todo = todo[1:] {
			for _, f := range declared[todo[0]] {
				if seen[f] {
					continue
				}
				seen[f] = true
				ast.Inspect(f.Body, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					name, method := calledName(call)
					if format := formatOf(call); (name == "OperatorErrorf" || name == "refuse") && format != "" {
						formats[fmt.Sprint(set.Position(call.Pos()))] = format
					}
					if fs := declared[name]; len(fs) > 0 && (fs[0].Recv != nil) == method {
						todo = append(todo, name)
					}
					return true
				})
			}
		}
	}
	return formats
}

// calledName returns the name of the function that a call names, and whether the function may be a method.
func calledName(call *ast.CallExpr) (name string, method bool) {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name, false
	case *ast.SelectorExpr:
		return f.Sel.Name, true
	}
	return "", false
}

// formatOf returns the longest text in the arguments of a call, because an error may wrap the error of another call.
func formatOf(call *ast.CallExpr) (longest string) {
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && len(text) > len(longest) {
					longest = text
				}
			}
			return true
		})
	}
	return longest
}

// assertEachStartErrorIsPlayed fails for an error that ends a start and is neither among the refusals nor in unplayed.
func assertEachStartErrorIsPlayed(t *testing.T, refusals []string) {
	t.Helper()
	formats := startErrorFormats(t)
	if len(formats) < 30 {
		t.Errorf("only %d errors were found", len(formats))
	}
	all := strings.Join(refusals, "\n")
	for at, format := range formats {
		parts := verbs.Split(format, -1)
		for n := range parts {
			parts[n] = regexp.QuoteMeta(parts[n])
		}
		found := regexp.MustCompile("(?s)" + strings.Join(parts, ".*?")).MatchString(all)
		for text := range unplayed {
			found = found || strings.Contains(format, text)
		}
		if !found {
			t.Errorf("%s: no test plays the start error %q: add it to startErrors, where a diagnosis has to find it", at, format)
		}
	}
	t.Logf("%d start errors of the code, %d refusals played", len(formats), len(refusals))
}
