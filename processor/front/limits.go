package front

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// ingressTopics returns the topics to which an IngressClient produces.
func ingressTopics(t *app.Topology, routes *rules.Routes) []string {
	var topics []string
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		topics = append(topics, r.Topics...)
		if r.Mode == rules.ClaimMode {
			topics = append(topics, r.Claim.Outcomes)
		}
	}
	if t.Repartition != "" {
		topics = append(topics, t.Repartition)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// readLimits reads the limits of the topics to which the client produces, and of the outputs, to which the
// judge emits the events. The client need not have rights on the outputs. Without these rights the client
// cannot refuse an event that is too large for its output; the judge then refuses it.
func (f *IngressClient) readLimits(ctx context.Context, client *kgo.Client, at *clientState) (changed bool, err error) {
	admin, topics := kadm.NewClient(client), ingressTopics(at.rt.Topology, f.routes)
	all := slices.Clone(topics)
	for _, r := range f.routes.Routes {
		if r.HTTP != nil {
			all = append(all, r.Output)
		}
	}
	slices.Sort(all)
	changed, err = at.rt.RereadLimits(ctx, admin, slices.Compact(all))
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return at.rt.RereadLimits(ctx, admin, topics)
	}
	return changed, err
}

// compareBodies logs a warning for each route whose http.max_body is larger than what one of its topics
// accepts.
func (f *IngressClient) compareBodies(at *clientState) {
	for _, r := range f.routes.Routes {
		if r.HTTP == nil {
			continue
		}
		topics := []string{r.HTTP.Topic, r.Output}
		if !r.Prepartitioned {
			topics = append(topics, at.rt.Topology.Repartition)
		}
		for _, topic := range topics {
			if limits := at.rt.Limit(topic); limits.MaxBytes > 0 && r.HTTP.MaxBody > int(limits.MaxBytes) {
				f.log.Warn("http.max_body exceeds a topic limit: larger bodies that do not fit compressed get 413; lower max_body or raise the setting",
					"route", r.Name, "max_body", r.HTTP.MaxBody, "topic", topic, "setting", limits.BytesSetting, "bytes", limits.MaxBytes)
			}
		}
	}
}

// fits returns an ErrTooLarge if a topic would refuse the event: the topic of rec, or the output of the event's
// route. It does not count headers that oncebus adds to an output record; the judge does.
func fits(at *clientState, rec *kgo.Record, s *Submission, d *rules.Derived) error {
	if err := fitsTopic(at, rec); err != nil || d.Finding != rules.Keyed {
		return err
	}
	out := kgo.Record{Value: s.Value, Headers: wire.AppendForeign(nil, s.Headers)}
	if d.Route.Prepartitioned { // on other routes the record key is the envelope, which the output record does not have
		out.Key = rec.Key
	}
	n, most := wire.RecordBytes(&out), int(at.rt.Limit(d.Route.Output).MaxBytes)
	switch {
	case most == 0 || n <= most:
	case kafka.IsPrecompressed(rec) && wire.RecordBytes(rec) <= most: // the output record is smaller than this one
	case !kafka.Precompress(&out, most, 0):
		return tooLarge(n, d.Route.Output, most)
	}
	return nil
}

// fitsTopic returns an ErrTooLarge if the record's topic would refuse it. It compresses a record that only fits
// compressed.
func fitsTopic(at *clientState, rec *kgo.Record) error {
	if n, most := wire.RecordBytes(rec), int(at.rt.BatchBytes(rec.Topic)); n > most && !kafka.Precompress(rec, most, at.rt.Limit(rec.Topic).ReadMax) {
		return tooLarge(n, rec.Topic, most)
	}
	return nil
}

func tooLarge(bytes int, topic string, most int) error {
	return fmt.Errorf("%w: %d bytes with headers, topic %s takes %d, also compressed", ErrTooLarge, bytes, topic, most)
}
