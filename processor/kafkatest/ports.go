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

// dial returns nil if a process listens at addr. The operating system refuses a connection to a port without a
// listener at once; a Kafka client would retry for longer than the tests can wait.
func dial(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{Timeout: probeMax}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// loopback returns the address of a port of this machine.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts returns n distinct loopback ports that no process listens on. It chooses ports below the range from which
// the system takes the local ports of outgoing connections (from 32768 on Linux, from 49152 elsewhere). Otherwise an
// outgoing connection could take the port of a stopped broker and prevent the broker's restart.
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

// FreePort returns a loopback address whose port no process listens on, for a process that must get the same port
// again after a restart.
func FreePort(ctx context.Context) (string, error) {
	ports, err := freePorts(ctx, 1)
	if err != nil {
		return "", err
	}
	return loopback(ports[0]), nil
}
