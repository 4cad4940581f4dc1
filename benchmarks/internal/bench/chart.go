package bench

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// Point is a measured value. Low and High are the ends of its error bar, which is left out if they are equal.
type Point struct {
	X         float64 // not used in a bar chart
	Y         float64
	Low, High float64
}

// Series is the values with one colour in a chart. In a bar chart it has one point for each group; a point whose Y is
// NaN has no bar.
type Series struct {
	Name   string
	Points []Point
}

// Chart is a bar chart if it has Groups, and a line chart otherwise.
type Chart struct {
	Title, X, Y string   // with units; a bar chart has no X
	Groups      []string // one label for each group of bars
	LogX, LogY  bool     // logarithmic axes of a line chart; all values must be above 0
	Series      []Series
}

// The drawing's size in pixels; the plot is inside the margins.
const (
	width, height                    = 900, 480
	left, right, top, bottom         = 80, 30, 80, 110
	plotW, plotH                     = width - left - right, height - top - bottom
	tickLength, fontSize, ticks      = 5, 13, 6
	barShare, whisker, dotRadius     = 0.8, 4, 3
	legendColumns, legendBox, labelY = 4, 12, 18
)

var colours = []string{"#3366aa", "#ee7733", "#228833", "#aa3377", "#66ccee", "#bbbbbb", "#ccaa33", "#000000"}

// SVG draws the chart.
func (c Chart) SVG() []byte {
	d := &drawing{chart: c}
	d.fit()
	fmt.Fprintf(&d.out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="%d">`+"\n", width, height, fontSize)
	fmt.Fprintf(&d.out, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	d.text(left, 22, "start", c.Title, `font-size="17" font-weight="bold"`)
	d.axes()
	for i, s := range c.Series {
		colour := colours[i%len(colours)]
		x, y := left+i%legendColumns*plotW/legendColumns, 36+i/legendColumns*labelY
		fmt.Fprintf(&d.out, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", x, y, legendBox, legendBox, colour)
		d.text(float64(x+legendBox+5), float64(y+legendBox-1), "start", s.Name, "")
		if len(c.Groups) > 0 {
			d.bars(i, s, colour)
		} else {
			d.line(s, colour)
		}
	}
	d.out.WriteString("</svg>\n")
	return d.out.Bytes()
}

type drawing struct {
	chart  Chart
	out    bytes.Buffer
	xs, ys scale
}

// fit sets the scales so that they contain every point. A linear scale also contains 0.
func (d *drawing) fit() {
	d.xs, d.ys = scale{log: d.chart.LogX, from: left, length: plotW}, scale{log: d.chart.LogY, from: top + plotH, length: -plotH}
	for _, s := range d.chart.Series {
		for _, p := range s.Points {
			d.xs.hold(p.X)
			for _, y := range []float64{p.Y, p.Low, p.High} {
				d.ys.hold(y)
			}
		}
	}
	d.xs.round()
	d.ys.round()
}

func (d *drawing) axes() {
	for _, v := range d.ys.ticks() {
		y := d.ys.at(v)
		d.segment(left, y, left+plotW, y, "#dddddd")
		d.text(left-tickLength-3, y+4, "end", number(v), "")
	}
	d.segment(left, top, left, top+plotH, "black")
	d.segment(left, top+plotH, left+plotW, top+plotH, "black")
	d.text(0, 0, "middle", d.chart.Y, fmt.Sprintf(`transform="translate(20 %d) rotate(-90)"`, top+plotH/2))
	step := float64(plotW) / float64(max(1, len(d.chart.Groups)))
	for i, label := range d.chart.Groups { // slanted, so that long names do not overlap
		x := left + (float64(i)+0.5)*step
		d.text(0, 0, "end", label, fmt.Sprintf(`transform="translate(%.1f %d) rotate(-25)"`, x+8, top+plotH+labelY))
	}
	if len(d.chart.Groups) > 0 {
		return
	}
	d.text(left+plotW/2, top+plotH+tickLength+2.5*labelY, "middle", d.chart.X, "")
	for _, v := range d.xs.ticks() {
		x := d.xs.at(v)
		d.segment(x, top+plotH, x, top+plotH+tickLength, "black")
		d.text(x, top+plotH+tickLength+labelY, "middle", number(v), "")
	}
}

// bars draws the i-th bar of every group.
func (d *drawing) bars(i int, s Series, colour string) {
	step := float64(plotW) / float64(len(d.chart.Groups))
	wide := step * barShare / float64(len(d.chart.Series))
	for g, p := range s.Points {
		if math.IsNaN(p.Y) {
			continue
		}
		x, y := left+(float64(g)+(1-barShare)/2)*step+float64(i)*wide, d.ys.at(p.Y)
		fmt.Fprintf(&d.out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, wide, top+plotH-y, colour)
		d.whisker(x+wide/2, p)
		d.text(x+wide/2, min(y, d.ys.at(max(p.Y, p.High)))-4, "middle", number(p.Y), `font-size="11"`)
	}
}

func (d *drawing) line(s Series, colour string) {
	fmt.Fprintf(&d.out, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colour)
	for _, p := range s.Points {
		fmt.Fprintf(&d.out, "%.1f,%.1f ", d.xs.at(p.X), d.ys.at(p.Y))
	}
	d.out.WriteString("\"/>\n")
	for _, p := range s.Points {
		fmt.Fprintf(&d.out, `<circle cx="%.1f" cy="%.1f" r="%d" fill="%s"/>`+"\n", d.xs.at(p.X), d.ys.at(p.Y), dotRadius, colour)
		d.whisker(d.xs.at(p.X), p)
	}
}

func (d *drawing) whisker(x float64, p Point) {
	if p.Low == p.High {
		return
	}
	low, high := d.ys.at(p.Low), d.ys.at(p.High)
	d.segment(x, low, x, high, "black")
	d.segment(x-whisker, low, x+whisker, low, "black")
	d.segment(x-whisker, high, x+whisker, high, "black")
}

func (d *drawing) segment(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(&d.out, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

func (d *drawing) text(x, y float64, anchor, text, more string) {
	fmt.Fprintf(&d.out, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>`, x, y, anchor, more)
	_ = xml.EscapeText(&d.out, []byte(text)) // a buffer returns no errors
	d.out.WriteString("</text>\n")
}
