package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"os"
	"strings"
	"time"

	"oncebus/processor/audit"
)

// auditReport is the report of an audit as one HTML file with its styles and charts, and without scripts.
//
//go:embed audit_report.html
var auditReport string

var auditTemplate = template.Must(template.New("audit").Funcs(template.FuncMap{
	"grouped": withCommas[uint64], "records": withCommas[int64], "estimated": estimated, "percent": audit.Percent, "duration": audit.Duration, "join": strings.Join,
	"delays": delayChart, "hours": hourChart, "parts": partChart,
	"ratio": ratio,
	"time":  func(t time.Time) string { return t.Format("2006-01-02 15:04 MST") },
	"inc":   func(i int) int { return i + 1 },
}).Parse(auditReport))

// writeReport writes the HTML report of an audit to a file.
func writeReport(file string, s *shownAudit) error {
	var page bytes.Buffer
	if err := auditTemplate.Execute(&page, s); err != nil {
		return fmt.Errorf("make the report: %w", err)
	}
	if err := os.WriteFile(file, page.Bytes(), 0o600); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}

// auditBar is a bar of a chart. hint is shown while the pointer is over the bar.
type auditBar struct {
	label, hint string
	value       float64
	share       float64 // height of the line, 0 to 1
}

// The size of a chart in units of its SVG view box. The plot lies inside the margins.
const (
	chartWidth, chartHeight                           = 640, 260
	chartLeft, chartRight, chartTop, chartBottom      = 58, 44, 14, 64
	chartPlotWidth                                    = chartWidth - chartLeft - chartRight
	chartPlotHeight                                   = chartHeight - chartTop - chartBottom
	chartGridLines, chartLabelsMax, chartLabelsOffset = 4, 14, 16
)

// delayChart shows the copies of each delay as bars, and the share of all copies up to that delay as a line.
func delayChart(r auditedRule) template.HTML {
	var bars []auditBar
	for _, d := range r.Delays {
		label := "longer"
		if d.UpTo > 0 {
			label = audit.Duration(d.UpTo)
		}
		bars = append(bars, auditBar{label, fmt.Sprintf("up to %s: %s copies, %s with all before", label, estimated(d.Copies), audit.Percent(d.Share)), float64(d.Copies.N), d.Share})
	}
	return drawBars("Copies by delay, and as a line the share of all copies up to it", r.Rule, bars, true)
}

// hourBarsMax is the largest number of bars in hourChart. If there are more hours, each bar stands for several
// hours.
const hourBarsMax = 120

// hourChart shows the copies of each hour of event time.
func hourChart(r auditedRule) template.HTML {
	if len(r.ByHour) == 0 {
		return ""
	}
	first, last := r.ByHour[0].Start, r.ByHour[len(r.ByHour)-1].Start
	hours := int(last.Sub(first)/time.Hour) + 1
	step := (hours + hourBarsMax - 1) / hourBarsMax
	bars := make([]auditBar, (hours+step-1)/step)
	events := make([]uint64, len(bars))
	for _, h := range r.ByHour {
		at := int(h.Start.Sub(first)/time.Hour) / step
		bars[at].value += float64(h.Copies.N)
		events[at] += h.Events
	}
	for i := range bars {
		start := first.Add(time.Duration(i*step) * time.Hour)
		bars[i].label = start.Format("01-02 15h")
		bars[i].hint = fmt.Sprintf("%s: %s copies of %s events", start.Format("2006-01-02 15:04"), withCommas(uint64(bars[i].value)), withCommas(events[i]))
	}
	title := "Copies per hour of event time, UTC"
	if step > 1 {
		title = fmt.Sprintf("Copies per %d hours of event time, UTC", step)
	}
	return drawBars(title, r.Rule, bars, false)
}

// partChart shows the copies of each partition, or of each sender.
func partChart(title, rule string, parts []auditedPart) template.HTML {
	var bars []auditBar
	for _, p := range parts {
		label := p.Name
		if at := strings.LastIndexByte(label, '/'); strings.HasPrefix(title, "Copies by partition") && at >= 0 {
			label = label[at+1:]
		}
		bars = append(bars, auditBar{label, fmt.Sprintf("%s: %s copies of %s events", p.Name, estimated(p.Copies), withCommas(p.Events)), float64(p.Copies.N), 0})
	}
	return drawBars(title, rule, bars, false)
}

// barWidthMax is the largest width of a bar.
const barWidthMax = 56

// drawBars draws the bars of a rule; if line is true, it also draws their shares as a line.
func drawBars(title, rule string, bars []auditBar, line bool) template.HTML {
	if len(bars) == 0 {
		return ""
	}
	var b strings.Builder
	text := template.HTMLEscapeString
	most := 1.0
	for _, x := range bars {
		most = max(most, x.value)
	}
	most = roundUp(most)
	fmt.Fprintf(&b, `<figure><figcaption>%s</figcaption><div class="scroll" role="region" aria-label="%s" tabindex="0"><svg viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		text(title), text(title+", "+rule), chartWidth, chartHeight, text(title))
	y := func(share float64) float64 { return chartTop + chartPlotHeight*(1-share) }
	for i := range chartGridLines + 1 {
		share := float64(i) / chartGridLines
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text class="left" x="%d" y="%.1f">%s</text>`, chartLeft, y(share), chartLeft+chartPlotWidth, chartLeft-6, y(share)+4, short(most*share))
		if line {
			fmt.Fprintf(&b, `<text x="%d" y="%.1f">%.0f %%</text>`, chartLeft+chartPlotWidth+6, y(share)+4, 100*share)
		}
	}
	step := float64(chartPlotWidth) / float64(len(bars))
	every := (len(bars) + chartLabelsMax - 1) / chartLabelsMax
	var points []string
	for i, x := range bars {
		left, width := chartLeft+float64(i)*step, min(0.8*step, barWidthMax)
		fmt.Fprintf(&b, `<g><title>%s</title><rect class="hit" x="%.1f" y="%d" width="%.1f" height="%d"/><rect class="bar" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/></g>`,
			text(x.hint), left, chartTop, step, chartPlotHeight, left+(step-width)/2, y(x.value/most), width, chartPlotHeight*x.value/most)
		points = append(points, fmt.Sprintf("%.1f,%.1f", left+step/2, y(x.share)))
		if i%every == 0 {
			fmt.Fprintf(&b, `<text class="below" transform="translate(%.1f %d) rotate(-35)">%s</text>`, left+step/2+4, chartTop+chartPlotHeight+chartLabelsOffset, text(x.label))
		}
	}
	if line {
		fmt.Fprintf(&b, `<polyline class="line" points="%s"/>`, strings.Join(points, " "))
	}
	b.WriteString("</svg></div></figure>")
	return template.HTML(b.String()) //nolint:gosec // all texts in it are escaped
}

// roundUp returns the next number that is 1, 2, 4 or 8 times a power of ten.
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 4, 8, 10} {
		if m*unit >= v {
			return max(chartGridLines, m*unit)
		}
	}
	return v
}

// short writes a number for an axis.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3g M", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3g k", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}
