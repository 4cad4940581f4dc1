//go:build unix

package kafkatest

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// dial reports whether a process listens at addr. The system refuses a connection
// without a listener at once; a Kafka client would retry for longer than the tests
// can wait.
func dial(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{Timeout: probeMax}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// loopback returns the address of a port of this machine.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts returns n distinct loopback ports without a listener. They are below the
// local ports of outgoing connections (from 32768 on Linux, from 49152 elsewhere):
// such a connection could use the port of a stopped broker and prevent its restart.
func freePorts(ctx context.Context, n int) ([]int, error) {
	const low, high, tries = 15_000, 32_000, 200
	var ports []int
	for range tries {
		port := low + mathrand.IntN(high-low)
		if slices.Contains(ports, port) {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(port))
		if err != nil {
			continue // in use: try another
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("release port %d: %w", port, err)
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free loopback ports between %d and %d", n, low, high)
}

// FreePort returns the address of a loopback port without a listener, for a process that
// returns to it after a stop.
func FreePort(ctx context.Context) (string, error) {
	ports, err := freePorts(ctx, 1)
	if err != nil {
		return "", err
	}
	return loopback(ports[0]), nil
}
