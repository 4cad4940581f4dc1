//go:build unix

package server

import (
	"context"
	"os"
	"testing"

	"oncebus/processor/kafkatest"
)

// TestRealServers starts each server, reads its usage and ends it. Its files are removed.
func TestRealServers(t *testing.T) {
	for _, c := range []struct {
		debian string
		start  func(context.Context) (*Server, error)
	}{
		{RedisPackage, func(ctx context.Context) (*Server, error) { return Redis(ctx, "everysec") }},
		{PostgresPackage, Postgres},
	} {
		t.Run(c.debian, func(t *testing.T) {
			if missing := Missing(c.debian); missing != "" {
				kafkatest.Lack(t, "%s", missing)
			}
			s, err := c.start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if memory, err := s.Memory(); err != nil || memory < 1<<20 {
				t.Errorf("memory %d (%v)", memory, err)
			}
			if disk, err := s.Disk(); err != nil || disk == 0 {
				t.Errorf("disk %d (%v)", disk, err)
			}
			if cpu, err := s.CPU(); err != nil || cpu < 0 {
				t.Errorf("CPU %v (%v)", cpu, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
				t.Errorf("the directory remains (%v)", err)
			}
		})
	}
}

// TestTicks adds the times of a process and of its ended children.
func TestTicks(t *testing.T) {
	sum, err := ticks([]byte("7 (a b) c) S 1 7 7 0 -1 0 1 2 3 4 100 20 3 4 20 0 1"))
	if want := int64(127); err != nil || sum != want {
		t.Errorf("%d ticks (%v), want %d", sum, err, want)
	}
	if _, err := ticks([]byte("7 (a) S 1")); err == nil {
		t.Error("a short line has no error")
	}
}
