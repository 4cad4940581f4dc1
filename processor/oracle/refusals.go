package oracle

import (
	"maps"
	"slices"
	"strings"
)

// A broker may refuse a record for reasons that the log does not show, so that only the dead letter of the
// record gives the reason. The oracle accepts at most as many such dead letters as the number of requests that
// the harness made brokers refuse.

// refusalID identifies a record that a topic refused: by the position of its event, as text, and the topic.
type refusalID struct{ from, topic string }

// readRefusals finds out from the dead letters which records were refused by their topics.
func (c *check) readRefusals() {
	c.builder.refusals = map[refusalID]string{}
	if len(c.h.Refused) == 0 {
		return
	}
	counts := map[string]int{}
	deadLetters := map[string]bool{}
	for i := range c.cfg.Routes {
		deadLetters[c.cfg.Routes[i].DeadLetter] = true
	}
	readings := c.h.Live
	if readings == nil {
		readings = c.h.Final
	}
	for _, dead := range slices.Sorted(maps.Keys(deadLetters)) {
		for i := range readings[dead] {
			r := &readings[dead][i]
			reason, _ := own(r, headerReason)
			rest, refused := strings.CutPrefix(reason, "refused by topic ")
			topic, _, _ := strings.Cut(rest, ": ")
			from, _ := own(r, headerSource)
			if id := (refusalID{from, topic}); refused && c.h.Refused[topic] > 0 && c.builder.refusals[id] == "" {
				c.builder.refusals[id] = reason
				counts[topic]++
			}
		}
	}
	c.report.Refused = counts
	for _, topic := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[topic]; n > c.h.Refused[topic] {
			c.add("K2", "%d dead letters say that %s refused them, its brokers refused %d requests", n, topic, c.h.Refused[topic])
		}
	}
}
