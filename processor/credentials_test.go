package processor_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	goruntime "runtime"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/security"
)

// TestProcessEndsWhenItIsNoLongerAccepted protects that a process whose credentials are refused ends, also with an
// open transaction that waits for a broker to take its records.
func TestProcessEndsWhenItIsNoLongerAccepted(t *testing.T) {
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.StopTimeout = 2 * time.Second
	var mu sync.Mutex
	var open []net.Conn
	refusing := false
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if refusing {
			return nil, fmt.Errorf("%w: test", security.ErrCredentials)
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			open = append(open, conn)
		}
		return conn, err
	}
	i := b.ready(b.startWith(cfg, func(p *processor.Processor) { p.SetPatience(500 * time.Millisecond) }, kgo.Dialer(dial)))
	var records []*kgo.Record
	for n := range 1000 {
		records = append(records, &kgo.Record{Topic: "signals.raw", Partition: int32(n % 4), Value: fmt.Appendf(nil, `{"id":"%d"}`, n)})
	}
	b.produce(records...)
	mu.Lock()
	refusing = true
	for _, conn := range open {
		_ = conn.Close() // the client closed some before
	}
	mu.Unlock()
	b.wait("the end", func() bool {
		select {
		case <-i.done:
			return true
		default:
			return false
		}
	})
	if i.err == nil || !security.CredentialsRefused(i.err) {
		t.Errorf("ended with %v", i.err)
	}
	// An operating-system process would be gone now; here a worker still waits for a broker.
	mu.Lock()
	refusing = false
	mu.Unlock()
	stacks := make([]byte, 4<<20)
	b.wait("the workers' end", func() bool {
		return !bytes.Contains(stacks[:goruntime.Stack(stacks, true)], []byte("(*worker).run("))
	})
}
