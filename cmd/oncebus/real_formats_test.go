//go:build unix

package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest/program"
	"oncebus/processor/kafkatest/tools"
)

// formatRoutes have a route for each format with schemas. In Avro the amount is part of the key:
// its scale differs between the two schemas.
const formatRoutes = `
routes:
  - {name: avro, topics: [APP.avro.raw], format: avro, key: [{fields: [account, id, at, amount]}], window: 24h, output: APP.avro.unique, dead_letter: APP.dead-letter}
  - {name: protobuf, topics: [APP.protobuf.raw], format: protobuf, key: [{fields: [account, id, at]}], window: 24h, output: APP.protobuf.unique, dead_letter: APP.dead-letter}
  - {name: json_schema, topics: [APP.json_schema.raw], format: json_schema, key: [{fields: [account, id, at]}], window: 24h, output: APP.json_schema.unique, dead_letter: APP.dead-letter}
`

var schemaFormats = []string{"avro", "protobuf", "json_schema"}

// serialised are the orders of a format, by the serialisers of two other projects. Each writes
// half of the orders with version 1 of the schema, and then the other half with version 2. The
// record key of an order is its number.
type serialised struct {
	w        *world
	registry *schemaRegistry
	commands map[string][]string // of the programs, by language
	orders   int
}

// writer is a program that has registered its schema.
type writer struct {
	*program.Process

	begin *os.File
}

// write starts a program that writes the orders from one to before another.
func (s *serialised) write(language, format string, version, from, to int) *writer {
	t := s.w.t
	t.Helper()
	url := s.registry.confluent
	if language == "java" {
		url = s.registry.interface3
	}
	args := append(slices.Clone(s.commands[language]), strings.Join(s.w.seeds, ","), url, s.w.topic(format+".raw"), format, strconv.Itoa(version), strconv.Itoa(from), strconv.Itoa(to))
	command := exec.CommandContext(context.WithoutCancel(t.Context()), args[0], args[1:]...)
	stdin, begin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close() // the program has its own descriptor
	command.Stdin = stdin
	name := fmt.Sprintf("%s-%s-%d", language, format, version)
	process, err := program.Start(name, command, filepath.Join(s.w.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		begin.Close() //nolint:errcheck // it is a pipe
		if err := process.Kill(); err != nil {
			t.Errorf("kill %s: %v", name, err)
		}
	})
	return &writer{process, begin}
}

// version starts the programs that write all orders with a version of the schema, and
// waits until they have registered it.
func (s *serialised) version(version int) (all []*writer) {
	s.w.t.Helper()
	halves := []string{"python", "java"}
	if version == 2 {
		halves = []string{"java", "python"}
	}
	for _, format := range schemaFormats {
		middle := s.orders / 2
		all = append(all, s.write(halves[0], format, version, 0, middle), s.write(halves[1], format, version, middle, s.orders))
	}
	for _, p := range all {
		if !s.w.awaitText(p.Process, "registered") {
			s.w.t.Fatal(p.Ended())
		}
	}
	return all
}

// begin lets the programs write, and waits until they have.
func (s *serialised) begin(all []*writer) {
	s.w.t.Helper()
	for _, p := range all {
		if _, err := p.begin.WriteString("\n"); err != nil {
			s.w.t.Fatal(err, p.Ended())
		}
	}
	for _, p := range all {
		s.w.succeeds(p.Process)
	}
}

// check compares the output of a format with its input: each order once, with unchanged bytes.
func (s *serialised) check(format string) {
	t := s.w.t
	t.Helper()
	sent := map[string]int{}
	for _, r := range s.w.output(format + ".raw") {
		sent[string(r.Value)]++
	}
	keys := map[string]int{}
	changed := 0
	for _, r := range s.w.output(format + ".unique") {
		if sent[string(r.Value)] == 0 {
			changed++
		}
		keys[string(r.Key)]++
	}
	doubled := 0
	for _, n := range keys {
		doubled += n - 1
	}
	if len(keys) != s.orders || doubled+changed > 0 || len(sent) != 2*s.orders {
		t.Errorf("%s: %d of %d orders, %d doubled, %d with other bytes; %d different records were sent", format, len(keys), s.orders, doubled, changed, len(sent))
	}
}

// serialisers returns the commands of the programs, by language.
func serialisers(t *testing.T) map[string][]string {
	t.Helper()
	const python, java = "testdata/serialisers/python", "testdata/serialisers/java"
	classes := tools.Java(t, "serialisers-java", java, "src/main/java/Produce.java", "src/main/resources/order1.json", "src/main/resources/order2.json")
	return map[string][]string{
		"python": {tools.Python(t, "serialisers-python", python), python + "/produce.py"},
		"java":   {"java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, "Produce"},
	}
}

// TestRealRegistryIsInstalled fetches what TestRealFormats runs, outside of its time.
func TestRealRegistryIsInstalled(t *testing.T) {
	apicurio(t)
	serialisers(t)
}

// TestRealFormats: orders in Avro, Protobuf and JSON Schema by the serialisers of Confluent for
// Python and of Apicurio for Java, each written twice, the second time with an evolved schema and
// by the other serialiser. The registry is killed before the app has read the second schemas, and
// an app that starts meanwhile waits for it, too. Each order is emitted once, and none becomes a
// dead letter.
func TestRealFormats(t *testing.T) {
	t.Parallel()
	s := &serialised{orders: max(2_000, 5*int(loadRate)/2), registry: newSchemaRegistry(t), commands: serialisers(t)}
	w := newLoadedWorld(t, formatRoutes)
	s.w = w
	w.settings = append(w.settings, "SCHEMA_REGISTRY_URL="+s.registry.confluent)
	inputs, outputs := []string{}, []string{}
	for _, format := range schemaFormats {
		inputs, outputs = append(inputs, format+".raw"), append(outputs, format+".unique")
	}
	w.createTopics(nil, append(append([]string{"dead-letter"}, inputs...), outputs...)...)
	a, b := w.start("a"), w.start("b")
	a.awaitReady()
	b.awaitReady()
	s.begin(s.version(1))
	w.drained(inputs, outputs)

	second := s.version(2)
	s.registry.kill()
	killed := time.Now()
	s.begin(second)
	w.drained([]string{"json_schema.raw"}, []string{"json_schema.unique"})
	a.kill()
	a = w.start("a")
	a.awaitReady()
	for _, p := range []*service{a, b} {
		eventually(t, "partitions wait for schemas", func(ctx context.Context) error {
			waits, err := p.metric(ctx, "oncebus_schema_waits")
			if err == nil && len(waits) == 0 {
				err = errNotYet
			}
			for _, n := range waits {
				if n == 0 {
					err = errNotYet
				}
			}
			return err
		})
	}
	if loadRate >= 20_000 {
		<-time.After(time.Until(killed.Add(30 * time.Second)))
	}
	away := time.Since(killed)
	s.registry.start()
	w.drained(inputs, outputs)

	for _, format := range schemaFormats {
		s.check(format)
	}
	if dead := w.output("dead-letter"); len(dead) > 0 {
		t.Errorf("%d dead letters, the first: %v", len(dead), dead[0].Headers)
	}
	t.Logf("%d records of each format, the registry was away for %v", 2*s.orders, away.Round(time.Second))
	a.stop()
	b.stop()
}
