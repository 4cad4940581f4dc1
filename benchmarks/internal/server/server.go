//go:build unix

package server

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

//go:embed redis.conf
var redisConf string

//go:embed postgresql.conf
var postgresConf string

// Server is a running server.
type Server struct {
	// Address is the address to which clients of the server connect.
	Address string

	dir     string
	process *program.Process
	stop    syscall.Signal // the signal that makes it end in good order, with exit code 0
}

// The Debian packages of the servers.
const (
	RedisPackage    = "redis-server"
	PostgresPackage = "postgresql"
)

// Missing returns a line that says what to install for a server; "" if nothing is missing.
func Missing(debian string) string {
	var err error
	switch debian {
	case RedisPackage:
		_, err = exec.LookPath("redis-server")
	case PostgresPackage:
		_, err = postgresTool("initdb")
	}
	if err != nil {
		return fmt.Sprintf("%v; apt-get install --no-install-recommends %s", err, debian)
	}
	return ""
}

// Redis starts Redis. appendfsync is its policy for syncing its file to the disk.
func Redis(ctx context.Context, appendfsync string) (*Server, error) {
	s, port, err := prepare(ctx, "redis", syscall.SIGTERM)
	if err != nil {
		return nil, err
	}
	s.Address = net.JoinHostPort("127.0.0.1", port)
	conf := filepath.Join(s.dir, "redis.conf")
	text := redisConf + fmt.Sprintf("port %s\ndir %s\nappendfsync %s\n", port, s.dir, appendfsync)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s.start(ctx, exec.CommandContext(ctx, "redis-server", conf), func(ctx context.Context) error {
		return quiet(exec.CommandContext(ctx, "redis-cli", "-p", port, "ping"))
	})
}

// Postgres creates a database cluster and starts PostgreSQL.
func Postgres(ctx context.Context) (*Server, error) {
	s, port, err := prepare(ctx, "postgres", syscall.SIGINT) // SIGTERM would wait for the clients
	if err != nil {
		return nil, err
	}
	s.Address = fmt.Sprintf("postgres://postgres@127.0.0.1:%s/postgres?sslmode=disable", port)
	data := filepath.Join(s.dir, "data")
	create, err := postgresCommand(ctx, "initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--pgdata="+data)
	if err == nil {
		err = quiet(create)
	}
	if err == nil {
		err = appendTo(filepath.Join(data, "postgresql.conf"), postgresConf+"port = "+port+"\n")
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	run, err := postgresCommand(ctx, "postgres", "-D", data)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s.start(ctx, run, func(ctx context.Context) error {
		ready, err := postgresTool("pg_isready")
		if err != nil {
			return err
		}
		return quiet(exec.CommandContext(ctx, ready, "-h", "127.0.0.1", "-p", port))
	})
}

// prepare finds a free port and makes the directory of a server. The directory belongs to the user that PostgreSQL
// runs as.
func prepare(ctx context.Context, name string, stop syscall.Signal) (s *Server, port string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err := errors.Join(err, listener.Close()); err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp("", "oncebus-"+name+"-")
	if err != nil {
		return nil, "", err
	}
	if name == "postgres" && os.Geteuid() == 0 {
		if err := quiet(exec.CommandContext(ctx, "chown", postgresUser, dir)); err != nil {
			return nil, "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return &Server{dir: dir, stop: stop}, port, nil
}

// start starts the process and waits until it accepts clients. If it fails, it leaves neither a process nor files
// behind.
func (s *Server) start(ctx context.Context, cmd *exec.Cmd, ready func(context.Context) error) (_ *Server, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.process, err = program.Start(filepath.Base(s.dir), cmd, filepath.Join(s.dir, "log")); err != nil {
		return nil, err
	}
	return s, kafkatest.Await(ctx, "clients connect to "+s.Address, func(ctx context.Context) error {
		if err := s.process.Ended(); err != nil {
			return kafkatest.Fatal(err)
		}
		return ready(ctx)
	})
}

// Close ends the server and removes its directory.
func (s *Server) Close() (err error) {
	if s.process != nil {
		// This signal is sent before the SIGTERM that Stop sends, because with SIGTERM alone PostgreSQL would
		// end more slowly.
		err = errors.Join(s.process.Signal(s.stop), s.process.Stop())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Disk returns the space that the server's files take.
func (s *Server) Disk() (int64, error) { return bench.DiskBytes(s.dir) }

// postgresUser is the user of Debian's package.
const postgresUser = "postgres"

// postgresCommand returns a command that runs a program of PostgreSQL as another user, because PostgreSQL refuses to
// run as root. The kernel clears the parent-death signal when the user changes, so setpriv sets it again.
func postgresCommand(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	path, err := postgresTool(name)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return exec.CommandContext(ctx, path, args...), nil
	}
	args = append([]string{"--reuid=" + postgresUser, "--regid=" + postgresUser, "--clear-groups", "--pdeathsig=KILL", path}, args...)
	cmd := exec.CommandContext(ctx, "setpriv", args...)
	cmd.Dir = "/" // the user may have no right to enter the current working directory
	return cmd, nil
}

// postgresTool finds a program of PostgreSQL in PATH, or in Debian's directory of the newest release.
func postgresTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	found, globErr := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if globErr != nil || len(found) == 0 {
		return "", errors.Join(err, globErr)
	}
	release := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4]) // 0 for a name that is no number
		return n
	}
	return slices.MaxFunc(found, func(a, b string) int { return release(a) - release(b) }), nil
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// quiet runs a command and returns its output only if it fails.
func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(string(out)))
	}
	return nil
}
