//go:build failpoints

package processor

import (
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/state/failpoint"
)

// failpointHooks returns a hook that sees the response to an offset commit. After that response the client
// itself sends EndTxn.
func failpointHooks() []kgo.Hook { return []kgo.Hook{offsetsHook{}} }

type offsetsHook struct{}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (offsetsHook) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if key == int16(kmsg.TxnOffsetCommit) && e2e.ReadErr == nil {
		failpoint.Hit(failpoint.AfterOffsets)
	}
}
