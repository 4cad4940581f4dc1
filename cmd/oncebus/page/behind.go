package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/processor"
	"oncebus/processor/app"
)

// behind sums up the records that wait in the inputs of all processes that the page shows, and sets the reason
// why they wait.
func (s *Snapshot) behind(states []processor.State) {
	for i := range states {
		for _, in := range states[i].Inputs {
			if s.Inputs == nil {
				s.Inputs = &Inputs{}
			}
			if in.Lag < 0 {
				s.Inputs.Unknown++
			} else {
				s.Inputs.Records += float64(in.Lag)
			}
		}
		if hold := states[i].Hold; hold != nil && s.Hold == nil {
			s.Hold = &Hold{Reason: hold.Reason, By: hold.By, Since: hold.Began()}
		}
		for _, h := range states[i].TimeHeld {
			s.TimeHeld = app.AddHeldTime(s.TimeHeld, h)
		}
	}
	slices.SortFunc(s.TimeHeld, func(a, b app.HeldTime) int {
		return cmp.Or(cmp.Compare(b.BehindMS, a.BehindMS), strings.Compare(a.Namespace, b.Namespace))
	})
}

// Text returns a line that says since when the inputs are held, by whom and why.
func (h *Hold) Text() string {
	text := "held since " + h.Since.Local().Format(time.DateTime)
	if h.By != "" {
		text += " by " + h.By
	}
	return text + ": " + h.Reason
}

// HeldText returns a line that says which input holds back the stream time of the first namespace in TimeHeld.
func (s *Snapshot) HeldText() string {
	if len(s.TimeHeld) == 0 {
		return ""
	}
	h := &s.TimeHeld[0]
	text := h.Text()
	if n := len(s.TimeHeld); n > 1 {
		text += fmt.Sprintf("; namespaces behind: %d", n)
	}
	return text
}
