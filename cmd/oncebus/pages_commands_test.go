//go:build unix

package main_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	main "oncebus/cmd/oncebus"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/kafkatest/program"
)

// listed has the commands of the pages that TestPageCommands does not run, by their
// beginning, with the reason.
var listed = []struct {
	begins *regexp.Regexp
	why    string
}{
	{regexp.MustCompile(`^make (build|pages)\b`), "TestPages and this test need their output"},
	{regexp.MustCompile(`^make demo\b`), "TestDemo runs the demo"},
	{regexp.MustCompile(`^make demo-http\b`), "TestRealWalkThrough runs the demo by HTTP"},
	{regexp.MustCompile(`^make (test|check|sim|mutants|faults|soak|bench-[a-z]+)\b`), "the target includes this test, or takes minutes to hours"},
	{regexp.MustCompile(`^([A-Z_]+=(\S+|\$\([a-z0-9 -]+\)) )?docker compose -f deployments/compose\.yaml `), "needs Docker; TestCompose reads the file"},
	{regexp.MustCompile(`^helm upgrade `), "TestRealPageHelm renders what it would install"},
	{regexp.MustCompile(`^kubectl `), "needs a Kubernetes cluster"},
	{regexp.MustCompile(`^(printf .* \| )?kafka-[a-z-]+\.sh `), "a script of Apache Kafka, which build machines do not have"},
}

// commandLines splits a block into commands: a line, with the lines of its
// backslashes or here-document.
func commandLines(block string) []string {
	var list []string
	lines := strings.Split(block, "\n")
	for i := 0; i < len(lines); i++ {
		command := lines[i]
		for strings.HasSuffix(command, `\`) && i+1 < len(lines) {
			i++
			command += "\n" + lines[i]
		}
		if _, end, ok := strings.Cut(command, "<<'"); ok {
			end, _, _ = strings.Cut(end, "'")
			for more := true; more && i+1 < len(lines); more = lines[i] != end {
				i++
				command += "\n" + lines[i]
			}
		}
		if text := strings.TrimSpace(command); text != "" && !strings.HasPrefix(text, "#") {
			list = append(list, command)
		}
	}
	return list
}

// TestPageCommands runs every command in an sh block of a page, in the order of the
// page, unless listed has it.
func TestPageCommands(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(moduleRoot, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		blocks := p.blocks("sh")
		if len(blocks) == 0 {
			continue
		}
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			r := newReader(t)
			for _, block := range blocks {
				for _, command := range commandLines(block) {
					if target, ok := strings.CutPrefix(command, "make "); ok {
						target, _, _ = strings.Cut(target, " ")
						if !strings.Contains(string(makefile), "\n"+target+":") {
							t.Errorf("make has no target %s", target)
						}
					}
					if !isListed(command) {
						r.run(command)
					}
				}
			}
		})
	}
}

// spanCommand matches a command in the text of a page.
var spanCommand = regexp.MustCompile("`oncebus ([a-z][^`]*)`")

// TestPagesNameRealCommands: each command in the text of a page exists, with its options.
func TestPagesNameRealCommands(t *testing.T) {
	paths := main.Commands().Paths()
	for _, p := range pages(t) {
		for _, found := range spanCommand.FindAllStringSubmatch(strings.Join(p.lines, " "), -1) {
			words := strings.Fields(found[1])
			depth := 0
			for n := range paths {
				if len(paths[n]) <= len(words) && slices.Equal(paths[n], words[:len(paths[n])]) {
					depth = max(depth, len(paths[n]))
				}
			}
			if depth == 0 {
				t.Errorf("%s: oncebus has no command %q", p.path, found[1])
				continue
			}
			help := execute(t.Context(), nil, "", append(slices.Clone(words[:depth]), "--help")...).Stdout
			for _, word := range words[depth:] {
				if option, _, _ := strings.Cut(strings.TrimRight(word, ",;"), "="); strings.HasPrefix(option, "--") && option != "--help" && !strings.Contains(help, option) {
					t.Errorf("%s: oncebus %s has no option %s", p.path, strings.Join(words[:depth], " "), option)
				}
			}
		}
	}
}

func isListed(command string) bool {
	for _, l := range listed {
		if l.begins.MatchString(command) {
			return true
		}
	}
	return false
}

// reader is a person who follows a page at the root of the repository, with a Kafka
// at localhost:9092.
type reader struct {
	t      *testing.T
	dir    string
	broker string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	shipped, err := filepath.Abs(filepath.Join(moduleRoot, "deployments"))
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, dir: t.TempDir()}
	for _, err := range []error{
		os.Mkdir(filepath.Join(r.dir, "bin"), 0o755),
		os.Symlink(shipped, filepath.Join(r.dir, "deployments")),
		os.WriteFile(filepath.Join(r.dir, "signals.secret"), []byte("secret-of-the-page"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// run executes a command: a service until it is ready, every other command to its
// end. Each must exit with 0.
func (r *reader) run(command string) {
	r.t.Helper()
	if err := os.Symlink(program.Shared(r.t), filepath.Join(r.dir, "bin", "oncebus")); err != nil && !errors.Is(err, fs.ErrExist) {
		r.t.Fatal(err)
	}
	environ := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "ONCEBUS_INSTANCE_ID=reader"}
	if strings.Contains(command, "localhost:9092") {
		if r.broker == "" {
			r.broker = embedded.Start(r.t).ListenAddrs()[0]
		}
		command = strings.ReplaceAll(command, "localhost:9092", r.broker)
	}
	for _, service := range []string{"run", "ingress"} {
		if before, ok := strings.CutSuffix(command, "./bin/oncebus "+service); ok {
			if service == "ingress" { // it reads the topics that the service creates
				topics := regexp.MustCompile(`ONCEBUS_INGRESS_ADDR=\S+`).ReplaceAllString(before, "ONCEBUS_CREATE_TOPICS=true")
				r.serve(topics+"exec ./bin/oncebus run", environ)
			}
			r.serve(strings.Replace(before, "=:8081", "=127.0.0.1:0", 1)+"exec ./bin/oncebus "+service, environ)
			return
		}
	}
	r.t.Logf("runs %s", command)
	shell := exec.CommandContext(r.t.Context(), "bash", "-c", command)
	shell.Dir, shell.Env = r.dir, environ
	if out, err := shell.CombinedOutput(); err != nil {
		r.t.Errorf("%s: %v\n%s", command, err, out)
	}
}

// serve starts a service, waits until it is ready and stops it.
func (r *reader) serve(command string, environ []string) {
	r.t.Helper()
	r.t.Logf("serves %s", command)
	shell := exec.CommandContext(context.WithoutCancel(r.t.Context()), "bash", "-c", command)
	shell.Dir, shell.Env = r.dir, slices.Concat(environ, []string{"ONCEBUS_ADMIN_ADDR=127.0.0.1:0", "ONCEBUS_LOG_FORMAT=json"})
	proc, err := program.Start(command, shell, filepath.Join(r.t.TempDir(), "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer proc.Kill() // it has ended, or the test has failed
	ctx, cancel := context.WithTimeout(r.t.Context(), realDeadline)
	defer cancel()
	if _, err := proc.AwaitReady(ctx); err != nil {
		r.t.Fatal(err)
	}
	if err := proc.Stop(); err != nil {
		r.t.Error(err)
	}
}
