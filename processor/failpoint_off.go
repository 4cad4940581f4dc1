//go:build !failpoints

package processor

import "github.com/twmb/franz-go/pkg/kgo"

func failpointHooks() []kgo.Hook { return nil }
