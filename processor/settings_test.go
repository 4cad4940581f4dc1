package processor_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

// refuseTopics makes the brokers refuse to create the topics for which refuse returns a message. The message "-"
// stands for a refusal without a message.
func (b *bench) refuseTopics(code *kerr.Error, refuse func(topic string, configs map[string]string) string) {
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		create := req.(*kmsg.CreateTopicsRequest)
		resp := create.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, topic := range create.Topics {
			configs := map[string]string{}
			for _, c := range topic.Configs {
				configs[c.Name] = *c.Value
			}
			if message := refuse(topic.Topic, configs); message != "" {
				refused := kmsg.NewCreateTopicsResponseTopic()
				refused.Topic, refused.ErrorCode = topic.Topic, code.Code
				if message != "-" {
					refused.ErrorMessage = &message
				}
				resp.Topics = append(resp.Topics, refused)
			}
		}
		return resp, nil, len(resp.Topics) > 0
	}, kmsg.CreateTopics)
}

// TestTopicSettingsThatABrokerRefuses starts on brokers that refuse settings of new topics: a setting that they do
// not know, and a max.message.bytes above the limit of a hosted Kafka. The topics then get the settings that the
// brokers accept.
func TestTopicSettingsThatABrokerRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code       *kerr.Error
		refuse     func(topic string, configs map[string]string) string
		maxMessage string // of the internal topics
	}{
		"none": {kerr.InvalidConfig, func(string, map[string]string) string { return "" }, "67108864"},
		"unknown": {kerr.InvalidConfig, func(_ string, configs map[string]string) string {
			for _, unknown := range []string{"message.timestamp.after.max.ms", "min.cleanable.dirty.ratio"} {
				if _, ok := configs[unknown]; ok {
					return "Unknown topic config name: " + unknown
				}
			}
			return ""
		}, "67108864"},
		"8 MiB":                   {kerr.PolicyViolation, refuseAbove(8<<20, "Config property 'max.message.bytes' with value '%d' exceeded max limit of %d."), "8388608"},
		"8 MiB without a message": {kerr.InvalidConfig, refuseAbove(8<<20, "-"), "8388608"},
		"10 MB":                   {kerr.InvalidConfig, refuseAbove(10_000_000, "Invalid value %d for configuration max.message.bytes: at most %d"), "8388608"},
		"not settable":            {kerr.PolicyViolation, refuseAbove(0, "max.message.bytes cannot be set: %d %d"), "1048588"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			b.refuseTopics(c.code, c.refuse)
			cfg := b.config("one")
			cfg.CreateTopics = true
			i := b.ready(b.start(cfg))
			records, sent := traffic(20)
			b.produce(records...)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			for _, topic := range []string{"app-repartition", "app-repartition-changelog"} {
				if got := b.setting(topic, "max.message.bytes"); got != c.maxMessage {
					t.Errorf("%s has max.message.bytes %s, want %s", topic, got, c.maxMessage)
				}
			}
			if logged := strings.Contains(b.logs.String(), "the brokers refuse"); logged != (name != "none") {
				t.Errorf("the log has a changed setting: %v", logged)
			}
		})
	}
}

// refuseAbove refuses a max.message.bytes above limit. The format of the message gets the value and the limit.
func refuseAbove(limit int, format string) func(string, map[string]string) string {
	return func(_ string, configs map[string]string) string {
		value, err := strconv.Atoi(configs["max.message.bytes"])
		switch {
		case err != nil || value <= limit:
			return ""
		case format == "-":
			return format
		}
		return fmt.Sprintf(format, value, limit)
	}
}

// setting returns the value of a topic's setting, or the broker's default.
func (b *bench) setting(topic, name string) string {
	b.t.Helper()
	described, err := b.admin.DescribeTopicConfigs(b.t.Context(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	config, err := described.On(topic, func(rc *kadm.ResourceConfig) error { return rc.Err })
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range config.Configs {
		if c.Key == name {
			return c.MaybeValue()
		}
	}
	return ""
}

// TestRefusedTopicNamesTheWayOut covers brokers that refuse a setting without which the state would be wrong. The
// start ends with the topic, the brokers' message and a command.
func TestRefusedTopicNamesTheWayOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code    *kerr.Error
		message string
	}{
		"named":   {kerr.PolicyViolation, "retention.ms may not be -1"},
		"unnamed": {kerr.PolicyViolation, "ask the platform team"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			b.refuseTopics(c.code, func(topic string, _ map[string]string) string {
				if topic == "app-repartition" {
					return c.message
				}
				return ""
			})
			i := b.start(b.config("one"))
			<-i.done
			if !kafka.IsOperatorError(i.err) {
				t.Fatalf("the start ended with: %v", i.err)
			}
			for _, want := range []string{"create topic app-repartition", "POLICY_VIOLATION", c.message,
				"kafka-topics.sh --create --topic app-repartition --partitions 4", "--config max.message.bytes=67108864", "--config retention.ms=-1"} {
				if !strings.Contains(i.err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, i.err)
				}
			}
		})
	}
}
