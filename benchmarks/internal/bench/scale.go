package bench

import (
	"math"
	"slices"
	"strconv"
)

// scale maps values to pixels of an axis.
type scale struct {
	log          bool
	low, high    float64
	held         bool
	from, length float64 // pixels
}

func (s *scale) hold(v float64) {
	if math.IsNaN(v) || s.log && v <= 0 {
		return
	}
	if !s.held {
		s.low, s.high, s.held = v, v, true
	}
	s.low, s.high = min(s.low, v), max(s.high, v)
}

// round widens the axis to whole ticks.
func (s *scale) round() {
	if s.log {
		if !s.held {
			s.low, s.high = 1, 1
		}
		s.low, s.high = math.Pow10(int(math.Floor(math.Log10(s.low)))), math.Pow10(int(math.Ceil(math.Log10(s.high))))
		if s.low == s.high {
			s.high *= 10
		}
		return
	}
	step := s.step()
	s.low, s.high = math.Floor(min(0, s.low)/step)*step, math.Ceil(max(0, s.high)/step)*step
}

// step returns the distance of ticks of a linear axis: 1, 2 or 5 with zeros.
func (s *scale) step() float64 {
	span := max(0, s.high) - min(0, s.low)
	if span == 0 {
		return 1
	}
	power := math.Pow10(int(math.Floor(math.Log10(span / ticks))))
	i := slices.IndexFunc([]float64{1, 2, 5}, func(m float64) bool { return span/(m*power) <= ticks })
	if i < 0 {
		return 10 * power
	}
	return []float64{1, 2, 5}[i] * power
}

func (s *scale) ticks() (at []float64) {
	if s.log {
		for v := s.low; v <= s.high*1.001; v *= 10 { // rounded powers
			at = append(at, v)
		}
		return at
	}
	step := s.step()
	for n := math.Round(s.low / step); n*step <= s.high+step/2; n++ {
		at = append(at, n*step)
	}
	return at
}

func (s *scale) at(v float64) float64 {
	if s.log {
		v = max(v, s.low)
		return s.from + s.length*math.Log10(v/s.low)/math.Log10(s.high/s.low)
	}
	if s.high == s.low {
		return s.from
	}
	return s.from + s.length*(v-s.low)/(s.high-s.low)
}

func number(v float64) string {
	switch {
	case math.Abs(v) >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + " M"
	case math.Abs(v) >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + " k"
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
