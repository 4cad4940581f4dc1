//go:build failpoints

package processor

import (
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/state/failpoint"
)

// failpointHooks see what only the client sees: the answer to an offset
// commit, after which it sends EndTxn by itself.
func failpointHooks() []kgo.Hook { return []kgo.Hook{offsetsHook{}} }

type offsetsHook struct{}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (offsetsHook) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if key == int16(kmsg.TxnOffsetCommit) && e2e.ReadErr == nil {
		failpoint.Hit(failpoint.AfterOffsets)
	}
}
