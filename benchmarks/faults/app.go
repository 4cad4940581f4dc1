//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/oracle"
)

// rawMaxBytes is the longest record that the raw topics accept.
const rawMaxBytes = 4 << 20

// route is one route of the app: the text in the routes file, and the same settings in the form that the oracle
// reads.
type route struct {
	name, topic string // topic is without the app's prefix
	yaml        string
	rules       oracle.Route // with topics without the app's prefix, and without a namespace id
	// key puts the id of an event into the key, the headers or the value of a raw record.
	key func(r *kgo.Record, id string)
}

// routes has routes for the different policies for duplicates, late events and events from the future. The
// windows are short, so that the windows of many events end within an epoch.
var routes = []route{
	{
		name: "signals", topic: "signals.raw",
		yaml: `key: [{field: id}]
    window: 20s
    grace: 5s
    skew: 25s
    headers: [route, key, verdict]
    duplicates: {to: APP.signals.duplicates}` + httpPart("/signals", true),
		rules: oracle.Route{
			Window: 20_000, Grace: 5_000, Skew: 25_000, Duplicates: oracle.To, DuplicatesTo: "signals.duplicates",
			Late: oracle.DeadLetter, Future: oracle.DeadLetter, Headers: oracle.Headers{Route: true, Key: true, Verdict: true},
		},
		key: func(r *kgo.Record, id string) { r.Value = fmt.Appendf(nil, `{"id":%q,%s`, id, r.Value[1:]) },
	},
	{
		name: "hooks", topic: "hooks.raw",
		yaml: `key: [{header: id}]
    window: 40s
    grace: 10s
    skew: 2s
    headers: [key]
    duplicates: forward
    on_late: forward
    on_future: clamp` + httpPart("/hooks", false, "id"),
		rules: oracle.Route{
			Window: 40_000, Grace: 10_000, Skew: 2_000, Duplicates: oracle.Forward, Late: oracle.Forward, Future: oracle.Clamp, Headers: oracle.Headers{Key: true},
		},
		key: func(r *kgo.Record, id string) {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "id", Value: []byte(id)})
		},
	},
	{
		name: "orders", topic: "orders.raw",
		yaml: `key: [record_key]
    window: 1h
    duplicates: drop
    on_late: drop`,
		rules: oracle.Route{
			Window: 3_600_000, Grace: 600_000, Skew: 3_600_000, Duplicates: oracle.Drop, Late: oracle.Drop, Future: oracle.DeadLetter,
		},
		key: func(r *kgo.Record, id string) { r.Key = []byte(id) },
	},
}

// app is one application (app id) on the cluster, with its own topics, processes and state.
type app struct {
	h     *harness
	id    string
	dir   string
	slots []*slot
	gate  *slot // the slot of its ingress; nil if the app has none
}

// newApp returns an app whose processes have the given names. It starts none of them.
func (h *harness) newApp(id string, slotNames ...string) (*app, error) {
	a := &app{h: h, id: id, dir: filepath.Join(h.dir, id)}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("routes:\n")
	for _, r := range routes {
		b.WriteString(r.text())
	}
	writeClaimRoutes(&b)
	if err := os.WriteFile(a.routesFile(), []byte(strings.ReplaceAll(b.String(), "APP", id)), 0o600); err != nil {
		return nil, err
	}
	for _, name := range slotNames {
		a.slots = append(a.slots, newSlot(a, name))
	}
	if err := a.createRaw(); err != nil {
		return nil, err
	}
	return a, nil
}

// text returns the route for the routes file. In it, APP stands for the app's id.
func (r *route) text() string {
	return fmt.Sprintf("  - name: %s\n    topics: [APP.%s]\n    %s\n    output: APP.%s.unique\n    dead_letter: APP.dead-letter\n", r.name, r.topic, r.yaml, r.name)
}

// createRaw creates the input topics, which accept large records and all timestamps.
func (a *app) createRaw() error {
	ctx, cancel := context.WithTimeout(a.h.ctx, time.Minute)
	defer cancel()
	size, after := fmt.Sprint(rawMaxBytes), "9223372036854775807"
	configs := map[string]*string{"max.message.bytes": &size, "message.timestamp.after.max.ms": &after}
	for n, topics := range map[int][]string{rawPartitions: a.rawTopics(), partitions: {a.topic(claimOutcomes), a.topic(extraRoute.name + ".unique")}} {
		resp, err := a.h.admin.CreateTopics(ctx, int32(n), int16(a.h.set.nodes), configs, topics...)
		if err == nil {
			err = resp.Error()
		}
		if err != nil {
			return fmt.Errorf("create the topics %v: %w", topics, err)
		}
	}
	return nil
}

func (a *app) routesFile() string        { return filepath.Join(a.dir, "routes.yaml") }
func (a *app) topic(name string) string  { return a.id + "." + name }
func (a *app) repartition() string       { return a.id + "-repartition" }
func (a *app) changelog() string         { return a.id + "-repartition-changelog" }
func (a *app) verdicts() string          { return a.id + "-verdicts" }
func (a *app) group(stage string) string { return a.id + "-" + stage }

func (a *app) rawTopics() []string {
	var names []string
	for _, r := range routes {
		names = append(names, a.topic(r.topic))
	}
	return append(names, a.topic(claimRaw), a.topic(extraRoute.topic))
}

// outputs returns the topics that readers of the plain routes read.
func (a *app) outputs() []string {
	names := []string{a.topic("dead-letter"), a.topic("signals.duplicates"), a.topic(extraRoute.name + ".unique")}
	for _, r := range routes {
		names = append(names, a.topic(r.name+".unique"))
	}
	return names
}

// observed returns all topics whose committed records the oracle judges.
func (a *app) observed() []string {
	return append(append(a.outputs(), a.claimTopics()...), a.repartition(), a.changelog(), a.verdicts())
}

// drop deletes the app's topics, so that the space on the broker's disk stays bounded.
func (a *app) drop(ctx context.Context) error {
	topics := append(append(a.rawTopics(), a.observed()...), a.id+"-manifest")
	for _, topic := range topics {
		a.h.cluster.deleted.Store(topic, true) // a killed process may have left a transaction open on it
	}
	resp, err := a.h.admin.DeleteTopics(ctx, topics...)
	if err != nil {
		return fmt.Errorf("delete the topics of %s: %w", a.id, err)
	}
	for _, r := range resp {
		if r.Err != nil && !errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("delete topic %s: %w", r.Topic, r.Err)
		}
	}
	return os.RemoveAll(a.dir)
}

// oracleConfig reads the numbers of topics and namespaces from the app's manifest. All other settings of the
// oracle come from the harness itself.
func (a *app) oracleConfig(ctx context.Context) (oracle.Config, error) {
	cfg := oracle.Config{Repartition: a.repartition(), Changelog: a.changelog(), Verdicts: a.verdicts(), Partitions: int32(partitions), Topics: map[string]uint16{}, Sources: map[uint8][]uint16{}, GoesOn: map[uint8]bool{}}
	records, err := a.h.readCommitted(ctx, a.id+"-manifest")
	if err != nil {
		return cfg, err
	}
	var manifest struct {
		Topics     []struct{ Name string }
		Namespaces []struct{ Name string }
	}
	for _, r := range records {
		if string(r.Key) == "manifest" {
			if err := json.Unmarshal(r.Value, &manifest); err != nil {
				return cfg, fmt.Errorf("read the manifest of %s: %w", a.id, err)
			}
		}
	}
	for number, t := range manifest.Topics {
		cfg.Topics[t.Name] = uint16(number)
	}
	cfg.RepartitionNumber = cfg.Topics[a.repartition()]
	namespaceID := func(namespace string) (uint8, error) {
		n := slices.IndexFunc(manifest.Namespaces, func(n struct{ Name string }) bool { return n.Name == namespace })
		if n < 0 {
			return 0, fmt.Errorf("the manifest of %s has no namespace %s", a.id, namespace)
		}
		return uint8(n), nil
	}
	all := routes
	if slices.ContainsFunc(manifest.Namespaces, func(n struct{ Name string }) bool { return n.Name == extraRoute.name }) {
		all = append(slices.Clone(routes), extraRoute)
	}
	for _, r := range all {
		rules := r.rules
		rules.Name = r.name
		if rules.NamespaceID, err = namespaceID(r.name); err != nil {
			return cfg, err
		}
		cfg.Sources[rules.NamespaceID] = []uint16{cfg.Topics[a.topic(r.topic)]}
		cfg.GoesOn[rules.NamespaceID] = true // the routes take the record's timestamp
		rules.Output, rules.DeadLetter = a.topic(r.name+".unique"), a.topic("dead-letter")
		if rules.DuplicatesTo != "" {
			rules.DuplicatesTo = a.topic(rules.DuplicatesTo)
		}
		cfg.Routes = append(cfg.Routes, rules)
	}
	if cfg.Claims, err = a.claimsConfig(cfg.Topics, namespaceID); err != nil {
		return cfg, err
	}
	for _, c := range cfg.Claims {
		cfg.Sources[c.NamespaceID], cfg.GoesOn[c.NamespaceID] = c.Sources, c.GoesOn
	}
	if cfg.Emissions, err = a.emissions(ctx); err == nil {
		cfg.Emissions[a.verdicts()] = oracle.Emission{Partitions: int32(partitions)}
	}
	return cfg, err
}

// emissions reads the size limits of the topics that the app emits to, because some records of the traffic exceed
// them. These topics have no limits on timestamps: oncebus has disabled them.
func (a *app) emissions(ctx context.Context) (map[string]oracle.Emission, error) {
	described, err := a.h.admin.DescribeTopicConfigs(ctx, a.outputs()...)
	if err != nil {
		return nil, err
	}
	emissions := map[string]oracle.Emission{}
	for _, topic := range described {
		if topic.Err != nil {
			return nil, fmt.Errorf("describe topic %s: %w", topic.Name, topic.Err)
		}
		e := oracle.Emission{Partitions: int32(partitions)}
		for _, c := range topic.Configs {
			if c.Key != "max.message.bytes" {
				continue
			}
			if e.MaxBytes, err = strconv.Atoi(c.MaybeValue()); err != nil {
				return nil, fmt.Errorf("topic %s: max.message.bytes is not a number: %w", topic.Name, err)
			}
		}
		emissions[topic.Name] = e
	}
	return emissions, nil
}
