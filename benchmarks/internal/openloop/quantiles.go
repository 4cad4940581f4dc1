//go:build unix

package openloop

import "time"

// Quantiles of a distribution of times, in milliseconds.
type Quantiles struct {
	P50, P90, P99, P999, Max float64
}

// QuantilesOf returns the quantiles of a histogram, 0 if it is empty.
func QuantilesOf(h *Histogram) Quantiles {
	return Quantiles{
		P50: Millis(h.Quantile(0.5)), P90: Millis(h.Quantile(0.9)), P99: Millis(h.Quantile(0.99)),
		P999: Millis(h.Quantile(0.999)), Max: Millis(h.Highest),
	}
}

// Millis returns a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
