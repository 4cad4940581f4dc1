package processor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/formats"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/registry"
)

// schemaWaits holds the partitions of one client that wait for the schema of a record. It asks the registry for
// each schema again and again until it has read the schema. So these partitions wait while the registry is
// unreachable, and no record gets another verdict because of that.
type schemaWaits struct {
	*shared

	ctx     context.Context //nolint:containedctx // that of the client
	wake    func()
	reading sync.WaitGroup

	mu      sync.Mutex
	waiting map[app.TaskID]awaitedSchema
	read    map[awaitedSchema]bool // the schemas being waited for; true once read
}

// awaitedSchema is the schema of a record.
type awaitedSchema struct {
	format rules.RecordFormat
	ref    formats.Reference
}

func newSchemaWaits(ctx context.Context, s *shared, wake func()) *schemaWaits {
	return &schemaWaits{shared: s, ctx: ctx, wake: wake, waiting: map[app.TaskID]awaitedSchema{}, read: map[awaitedSchema]bool{}}
}

// await pauses a partition until the schema of a record has been read.
func (w *schemaWaits) await(client *kgo.Client, id app.TaskID, pending *judge.PendingSchemaError) {
	client.PauseFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
	of := awaitedSchema{pending.Format, pending.Schema}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.board.awaitsSchema(id, pending.Error())
	if _, waits := w.waiting[id]; !waits {
		w.metrics.schemaWaits.Inc()
	}
	w.waiting[id] = of
	if _, asked := w.read[of]; !asked {
		w.read[of] = false
		w.reading.Go(func() { w.ask(of, id) })
	}
}

// ask asks the registry for a schema, again and again until it has the schema.
func (w *schemaWaits) ask(of awaitedSchema, first app.TaskID) {
	began := time.Now()
	for backoff := backoffMin; ; backoff = min(2*backoff, backoffMax) {
		err := w.cfg.Schemas().Read(w.ctx, of.format, of.ref)
		if err == nil {
			break
		}
		if w.ctx.Err() != nil {
			return
		}
		w.log.Warn("schema cannot be read, records that name it wait", "topic", first.Topic, "partition", first.Partition,
			"waits", time.Since(began).Round(time.Millisecond).String(), "error", err)
		if kafka.Pause(w.ctx, backoff) != nil {
			return
		}
	}
	w.mu.Lock()
	w.read[of] = true
	w.mu.Unlock()
	w.wake()
}

// takeRead returns the partitions whose schema was read since the last call.
func (w *schemaWaits) takeRead() (ready []app.TaskID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, of := range w.waiting {
		if w.read[of] {
			ready = append(ready, id)
			w.remove(id)
		}
	}
	for of, read := range w.read {
		if read {
			delete(w.read, of)
		}
	}
	return ready
}

// waits reports whether a partition waits for a schema.
func (w *schemaWaits) waits(id app.TaskID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, waits := w.waiting[id]
	return waits
}

// remove forgets a partition that waits. The caller holds mu.
func (w *schemaWaits) remove(id app.TaskID) {
	delete(w.waiting, id)
	w.metrics.schemaWaits.Dec()
	w.board.awaitsSchema(id, "")
}

// drop forgets partitions that are revoked, because another worker now waits for their schemas. If a partition
// comes back to this worker, its record is judged again.
func (w *schemaWaits) drop(gone map[string][]int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			id := app.TaskID{Topic: topic, Partition: p}
			if _, waits := w.waiting[id]; waits {
				w.remove(id)
			}
		}
	}
}

// close waits until no schema is being asked for any more. The caller has ended the context of the client.
func (w *schemaWaits) close() {
	w.reading.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.waiting {
		w.remove(id)
	}
}

// schemaFindings judges the schemas that records of the routes need; nil if they need none.
func schemaFindings(ctx context.Context, schemas *registry.Registry, routes *rules.Routes) []app.Finding {
	const check = "schemas"
	if schemas == nil || !slices.ContainsFunc(routes.Formats(), func(f rules.RecordFormat) bool { return f.Format.NeedsSchema() }) {
		return nil
	}
	if err := schemas.Check(ctx, routes); err != nil {
		return []app.Finding{{Check: check, Level: app.Fails, Text: err.Error(), Action: "put the schema files in place, or set ONCEBUS_SCHEMA_REGISTRY_URL"}}
	}
	if err := schemas.Ask(ctx); err != nil {
		return []app.Finding{{
			Check: check, Level: app.AtRisk, Text: "the schema registry does not answer: " + err.Error() + ": partitions with records of unread schemas wait",
			Action: "start the registry, or correct ONCEBUS_SCHEMA_REGISTRY_URL and its credentials",
		}}
	}
	return []app.Finding{{Check: check, Level: app.OK, Text: "the schema files are read, and the registry answers"}}
}
