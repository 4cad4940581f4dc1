package audit

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"oncebus/dedup/rules"
)

// Advice is a recommended setting, with the reason for it.
type Advice struct {
	Value   time.Duration // 0: none can be recommended
	Covers  float64       // share of the copies or events that the value covers
	Reason  string
	Warning string // "" for none
}

// A recommendation takes the smallest step that covers this share of the copies or events.
const (
	windowShare = 0.999
	graceShare  = 0.9999
	// With fewer copies than fewCopies, a share of one in a thousand means little.
	fewCopies = 1000
)

// The steps among which a recommendation chooses.
var (
	windowSteps = milliseconds(time.Minute, 5*time.Minute, 15*time.Minute, time.Hour, 6*time.Hour, day, 3*day, 7*day, 14*day, 30*day, 60*day, 90*day)
	graceSteps  = milliseconds(rules.DefaultGrace, 15*time.Minute, 30*time.Minute, time.Hour, 3*time.Hour, 6*time.Hour, 12*time.Hour, day, 3*day, 7*day, 14*day, 30*day)
)

// Window recommends a window: the smallest step that covers 99.9 % of the copies. age is the length of the log
// in ms.
func (c *Counted) Window(age int64) Advice {
	if c.total.n == 0 {
		return Advice{Reason: "there are no copies, so any window would do"}
	}
	a := Advice{Warning: c.rising(age)}
	for _, step := range windowSteps {
		var within count
		for i := range Steps {
			if Steps[i] <= step {
				within.merge(c.all.delays[i])
			}
		}
		a.Value = time.Duration(step) * time.Millisecond
		if a.Covers, _ = share(within, c.total, c.Sample); a.Covers >= windowShare {
			a.Reason = fmt.Sprintf("the least step with %s of the copies", Percent(windowShare))
			break
		}
	}
	if a.Reason == "" {
		a.Reason = "the longest step; " + Percent(1-a.Covers) + " of the copies come later"
	}
	if c.Copies.N < fewCopies {
		a.Warning = strings.TrimPrefix(a.Warning+"; ", "; ") + fmt.Sprintf("only %d copies: one of them is more than the share that may be missed", c.Copies.N)
	}
	return a
}

// rising returns a warning if the delay of many copies is almost as long as the log: then there are probably
// further copies whose first record is no longer in the log, so that the audit cannot recognise them.
func (c *Counted) rising(age int64) string {
	var beyond count
	half := -1
	for i := range Steps {
		if 2*Steps[i] <= age {
			half = i
		}
	}
	for i := half + 1; i < len(c.all.delays); i++ {
		beyond.merge(c.all.delays[i])
	}
	of, _ := share(beyond, c.total, c.Sample)
	if of <= 1-windowShare {
		return ""
	}
	after := "at once"
	if half >= 0 {
		after = "later than " + Duration(Steps[half])
	}
	return fmt.Sprintf("%s of the copies come %s, and the log is only %s long: it may lack the first records of others, or different events share keys",
		Percent(of), after, Duration(age))
}

// Grace recommends a grace period: the smallest step that is at least the lateness of 99.99 % of the events,
// and at least the default.
func (c *Counted) Grace() Advice {
	if c.Keyed == 0 {
		return Advice{Reason: "there are no events with a key"}
	}
	within := int64(-1)
	for _, l := range c.Lateness {
		if within = l.UpTo; l.Share >= graceShare {
			break
		}
	}
	if within < 0 {
		return Advice{Value: time.Duration(graceSteps[len(graceSteps)-1]) * time.Millisecond, Reason: "the longest step; many events are later than a year"}
	}
	reason := Percent(graceShare) + " of the events are at most " + Duration(within) + " behind the newest one before them in their partition"
	if within == 0 {
		reason = Percent(graceShare) + " of the events are in order"
	}
	for _, step := range graceSteps {
		if step >= within {
			a := Advice{Value: time.Duration(step) * time.Millisecond, Reason: reason}
			for _, l := range c.Lateness {
				if l.UpTo >= 0 && l.UpTo <= step {
					a.Covers = l.Share
				}
			}
			return a
		}
	}
	return Advice{Value: time.Duration(graceSteps[len(graceSteps)-1]) * time.Millisecond, Reason: reason}
}

// Duration writes a number of ms as people say it: 3d 4h, 10m, 1.5s.
func Duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d < time.Minute {
		return d.String()
	}
	var parts []string
	hours := d < 2*day // a day is 24h, as in a routes file
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / unit.of; n > 0 && len(parts) < 2 && !(hours && unit.of == day) {
			parts = append(parts, strconv.FormatInt(int64(n), 10)+unit.name)
			d %= unit.of
		}
	}
	return strings.Join(parts, " ")
}

// Percent writes a share in percent, with as many digits as it needs to differ from 0 and 1.
func Percent(share float64) string {
	digits := 1
	for rest := min(share, 1-share); digits < 4 && rest > 0 && rest < 0.01; digits++ {
		rest *= 10
	}
	text := strconv.FormatFloat(100*share, 'f', digits, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + " %"
}
