package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"testing"
)

// TestChart draws difficult charts: each must be well-formed, without NaN, and
// contain its texts.
func TestChart(t *testing.T) {
	for name, c := range map[string]Chart{
		"empty":    {},
		"bars":     {Title: "a < b & c", Y: "k/s", Groups: []string{"one", "two"}, Series: []Series{{Name: "x", Points: []Point{{Y: 1200, Low: 1100, High: 1300}, {Y: math.NaN()}}}}},
		"one":      {X: "keys", Series: []Series{{Name: "x", Points: []Point{{X: 5, Y: 5}}}}},
		"zero":     {Series: []Series{{Points: []Point{{}, {}}}}},
		"log":      {LogX: true, LogY: true, Series: []Series{{Points: []Point{{X: 1e6, Y: 0.5}, {X: 5e7, Y: 0}, {X: 1e9, Y: 100}}}}},
		"negative": {Series: []Series{{Points: []Point{{X: -3, Y: -1}, {X: 4, Y: 2}}}}},
	} {
		svg := c.SVG()
		decoder := xml.NewDecoder(bytes.NewReader(svg))
		for {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("%s: a coordinate is NaN", name)
		}
	}
}
