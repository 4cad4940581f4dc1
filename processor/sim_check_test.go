//go:build synctests

package processor_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"oncebus/processor/oracle"
)

// sources returns the sources of the app, as a life that ran at level 2 knows them.
func (s *sim) sources() map[uint8][]uint16 {
	all := map[uint8][]uint16{}
	for _, life := range s.lives {
		if life.HasApp() { // it may have been stopped in its start
			maps.Copy(all, life.App().Sources)
		}
	}
	return all
}

// goesOn returns the namespaces whose stream time goes on without events.
func (s *sim) goesOn() map[uint8]bool {
	all := map[uint8]bool{}
	for _, life := range s.lives {
		if !life.HasApp() {
			continue
		}
		for id := range life.App().Sources {
			all[id] = life.App().GoesOn[id]
		}
	}
	return all
}

// check lets the oracle judge the history.
func (s *sim) check(h *oracle.History) {
	if s.set.claims != nil {
		s.checkClaims(h)
		return
	}
	manifest := s.lives[0].App().Manifest
	cfg := oracle.Config{
		Repartition: "app-repartition", Changelog: "app-repartition-changelog", Partitions: s.set.partitions,
		Topics: map[string]uint16{}, Routes: s.set.routes, Emissions: map[string]oracle.Emission{},
		Sources: s.sources(), GoesOn: s.goesOn(),
	}
	for _, topic := range s.set.outputs() {
		cfg.Emissions[topic] = oracle.Emission{Partitions: s.set.partitions}
	}
	for n := range cfg.Routes {
		cfg.Routes[n].NamespaceID = manifest.NamespaceID(cfg.Routes[n].Name)
	}
	for _, topic := range s.set.inputs {
		cfg.Topics[topic] = manifest.TopicNumber(topic)
	}
	cfg.RepartitionNumber = manifest.TopicNumber("app-repartition")
	if s.set.http > 0 {
		cfg.Verdicts = simVerdicts
	}
	if s.set.changes {
		cfg.Sets = s.routeSets(manifest.NamespaceID)
	}
	began := time.Now()
	report, violations := oracle.Check(cfg, h)
	s.note("checked in %v: %+v", time.Since(began), report)
	s.t.Logf("seed %d: %v", s.seed, report)
	s.judged(&report)
	if len(violations) == 0 {
		return
	}
	var b strings.Builder
	for n, v := range violations {
		if n < 20 {
			s.t.Error(v)
		}
		fmt.Fprintln(&b, v)
	}
	s.violations = len(violations)
	s.t.Errorf("%d violations", len(violations))
	s.keep("violations", []byte(b.String()))
	history, err := json.Marshal(struct {
		Config  oracle.Config
		History *oracle.History
	}{cfg, h})
	if err != nil {
		s.t.Fatal(err)
	}
	s.keep("history.json", history)
}

// judged adds the oracle's judgements to the counts of the report.
func (s *sim) judged(r *oracle.Report) {
	s.seen = map[string]int{"requests": r.Requests, "responses with a verdict": r.Answers, "bypassed without a look-up": r.Bypassed}
	maps.Copy(s.seen, r.Outputs)
	for _, n := range r.Refused {
		s.seen["refused by a broker"] += n
	}
}

// report writes the result of the seed for the process that started this process.
func (s *sim) report() {
	r := simReport{Faults: s.faults, Hours: time.Since(s.began).Hours(), Records: len(s.traffic.sent) + s.traffic.claimed.n, Violations: s.violations, Seen: s.seen}
	s.t.Logf("seed %d: %s", s.seed, r.text())
	file := os.Getenv("ONCEBUS_SIM_REPORT")
	if file == "" {
		return
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		s.t.Error(err)
	}
}
