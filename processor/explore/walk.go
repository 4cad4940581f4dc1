package explore

import "math/rand/v2"

// Walk takes at most the given number of random steps through a model, until it reaches a goal or a state without
// steps. Use it for bounds that are too wide to explore. The error is a ViolationError, whose trace need not be a
// shortest one. reached reports whether the walk ended in a goal.
func Walk[S comparable](m Model[S], rng *rand.Rand, most int) (reached bool, err error) {
	s := m.Start[rng.IntN(len(m.Start))]
	var trace []string
	var steps []Step[S]
	for range most {
		if m.Goal != nil && m.Goal(s) {
			return true, nil
		}
		if steps = m.Next(s, steps[:0]); len(steps) == 0 {
			if m.Goal != nil {
				err = ErrStuck
			} else if m.Final != nil {
				err = m.Final(s)
			}
			break
		}
		step := steps[rng.IntN(len(steps))]
		trace = append(trace, step.String())
		if s, err = step.To, step.Err; err == nil && m.Check != nil {
			err = m.Check(s)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		return false, &ViolationError{Model: m.Name, Trace: trace, Err: err}
	}
	return m.Goal != nil && m.Goal(s), nil
}
