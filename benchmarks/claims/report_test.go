//go:build unix

package main

import (
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	rounds := []measurement{{Dispatched: 3, OpenCPU: 2 * time.Millisecond}, {Dispatched: 1, OpenCPU: 3 * time.Millisecond}, {Dispatched: 2, OpenCPU: time.Millisecond}}
	for _, r := range rows {
		want := map[string]float64{rows[0].name: 2, rows[4].name: 2000}[r.name]
		if got := r.median(rounds); got != want {
			t.Errorf("%s: %v, want %v", r.name, got, want)
		}
	}
}
