//go:build unix

package main_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"oncebus/processor/kafkatest/embedded"
)

// TestRealAuditReportInChromium opens the report of an audit from a file, in light and dark and on
// a phone: it shows the numbers of the JSON and all charts, requests nothing, and has no
// violation of accessibility.
func TestRealAuditReportInChromium(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	cluster := embedded.Start(t)
	produceOrders(t, cluster)
	file := filepath.Join(t.TempDir(), "audit.html")
	a := auditOf(t, cluster.ListenAddrs()[0], "--topic", "orders", "--key", "field:id", "--key", "record_key", "--ignore", "sentAt", "--sender", "header:producer", "--report", file)
	run(b, chromedp.Navigate("file://"+file))
	if got := b.text("h1"); got != "Audit of orders" {
		t.Errorf("the title is %q", got)
	}
	rows := b.table("rules")
	if len(rows) != len(a.Rules) {
		t.Fatalf("the table has %q", rows)
	}
	for i, r := range a.Rules {
		if rows[i][0] != r.Rule || rows[i][6] != r.Window.Text || strings.ReplaceAll(rows[i][2], ",", "") != fmt.Sprint(r.Copies.N) {
			t.Errorf("row %d is %q, want %+v", i, rows[i], r)
		}
	}
	// Each rule has copies by delay, hour, partition and sender.
	if got := evaluate[int](b, "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height > 100 && s.querySelectorAll('.bar').length > 1).length"); got != 8 {
		t.Errorf("%d charts are drawn, want 8", got)
	}
	bars := evaluate[float64](b, "(([...bars]) => Math.max(...bars.map(e => e.getBBox().height)))(document.querySelectorAll('figure svg .bar'))")
	if bars < 100 || bars > 182 {
		t.Errorf("the highest bar has %.0f of 182 units", bars)
	}
	for _, v := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"wide", 1280, 1180, "light"}, {"dark", 1280, 1180, "dark"}, {"narrow", 360, 740, "light"}} {
		b.view(v.width, v.height, v.scheme)
		b.screenshot("audit-" + v.name)
		b.checkWidth("audit, " + v.name)
		b.checkAccess("audit, " + v.name)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		t.Errorf("the page reports %s", p)
	}
	for _, r := range b.requests {
		if r != "file://"+file && !strings.HasPrefix(r, "data:") {
			t.Errorf("the page requested %s", r)
		}
	}
}
