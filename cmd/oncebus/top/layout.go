package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"oncebus/cmd/oncebus/page"
)

// paint is a terminal style of a piece of text. The terminal library drops colours that the terminal does not
// have, and all colours if NO_COLOR is set.
type paint string

const (
	plain   paint = ""
	bold    paint = "\x1b[1m"
	faint   paint = "\x1b[2m"
	good    paint = "\x1b[32m"
	warn    paint = "\x1b[33m"
	bad     paint = "\x1b[31m"
	unpaint       = "\x1b[0m"
)

// piece is a text that has one style.
type piece struct {
	text string
	paint
}

// line is a line of text made of pieces.
type line []piece

// write returns the line cut to a width. colours tells whether it includes styles.
func (l line) write(width int, colours bool) string {
	var out strings.Builder
	for _, p := range l {
		if width <= 0 {
			break
		}
		text := fit(p.text, width)
		width -= utf8.RuneCountInString(text)
		if colours && p.paint != plain && text != "" {
			text = string(p.paint) + text + unpaint
		}
		out.WriteString(text)
	}
	return strings.TrimRight(out.String(), " ")
}

// fit cuts a text to a width. If it had to cut, the text ends in a tilde.
func fit(text string, width int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return string(runes[:max(0, width-1)]) + "~"
}

// pad fills a text with spaces to a width: on the left for numbers, on the right for other texts.
func pad(text string, width int, number bool) string {
	text = fit(text, width)
	space := strings.Repeat(" ", width-utf8.RuneCountInString(text))
	if number {
		return space + text
	}
	return text + space
}

// column is a column of a table.
type column struct {
	title  string
	number bool
	most   int // largest width; 0 for no bound
	cell   func(row int) piece
}

// table lays out rows in columns. If the columns do not fit into the width, the last ones are left out.
func table(columns []column, rows []int, width int) []line {
	head, body := line{}, make([]line, len(rows))
	for i, c := range columns {
		wide := utf8.RuneCountInString(c.title)
		for _, r := range rows {
			wide = max(wide, utf8.RuneCountInString(c.cell(r).text))
		}
		if c.most > 0 {
			wide = min(wide, c.most)
		}
		gap := ""
		if i > 0 {
			gap = "  "
		}
		if width -= wide + len(gap); width < 0 && i > 0 {
			break
		}
		head = append(head, piece{gap + pad(c.title, wide, c.number), faint})
		for n, r := range rows {
			cell := c.cell(r)
			body[n] = append(body[n], piece{gap + pad(cell.text, wide, c.number), cell.paint})
		}
	}
	return append([]line{head}, body...)
}

// order is how the tasks are sorted on the screen.
type order int

const (
	byState order = iota // tasks that do not run come first
	byLag
	byKeys
	byName
	orders
)

func (o order) String() string { return [...]string{"state", "lag", "keys", "name"}[o] }

// sorted returns the indices of the tasks in this order. Tasks that are equal in this order stay in the order
// of the snapshot.
func (o order) sorted(tasks []page.Task) []int {
	rows := make([]int, len(tasks))
	for i := range rows {
		rows[i] = i
	}
	slices.SortStableFunc(rows, func(a, b int) int {
		x, y := &tasks[a], &tasks[b]
		switch o {
		case byState:
			return cmp.Compare(running(x), running(y))
		case byLag:
			return cmp.Compare(y.LagRecords, x.LagRecords)
		case byKeys:
			return cmp.Compare(y.Keys, x.Keys)
		case byName, orders:
		}
		return 0
	})
	return rows
}

func running(t *page.Task) int {
	if t.State == "running" {
		return 1
	}
	return 0
}

// summary returns the lines above the tables.
func summary(s *page.Snapshot) []line {
	state := piece{"ready", good}
	switch {
	case s.BrokerUp != nil && !*s.BrokerUp:
		state = piece{"Kafka is down", bad}
	case s.Disk != nil && s.Disk.Paused:
		state = piece{"paused", bad}
	case !s.Ready:
		state = piece{"not ready", warn}
	}
	lines := []line{{{"oncebus ", bold}, {s.App, bold}, {fmt.Sprintf("  %s %s  ", s.Role, s.Instance), plain}, state, {"  " + s.Time.Local().Format("15:04:05") + "  " + s.Version, faint}}}
	if s.Reason != "" {
		lines = append(lines, line{{"  " + s.Reason, warn}})
	}
	lines = append(lines, line{},
		line{{"events  ", faint}, {rate(s.Events.PerSecond) + "/s", bold}, {fmt.Sprintf("  %s in all    ", count(s.Events.Total)), plain},
			{"duplicates  ", faint}, {percent(s.Events.DuplicateShare), bold}, {fmt.Sprintf("  %s in all", count(s.Events.Duplicates)), plain}},
		lagLine(s))
	if s.Hold != nil {
		lines = append(lines, line{{"hold    ", faint}, {s.Hold.Text(), warn}})
	}
	if held := s.HeldText(); held != "" {
		lines = append(lines, line{{"time    ", faint}, {held, warn}})
	}
	var last line
	for _, c := range s.Commits {
		if c.Stage == "dedup" {
			last = append(last, piece{"commit  ", faint}, piece{"p50 " + duration(c.P50) + "  p99 " + duration(c.P99) + "    ", plain})
		}
	}
	if s.Disk != nil {
		last = append(last, piece{"disk  ", faint}, piece{size(s.Disk.StateBytes) + ", " + size(s.Disk.FreeBytes) + " free", plain})
	}
	if s.HTTP != nil {
		last = append(last, piece{"    http  ", faint}, piece{rate(s.HTTP.PerSecond) + "/s, p99 " + duration(s.HTTP.P99), plain})
	}
	return append(lines, last)
}

// lagLine returns the line with the number of records that wait in the tasks, and the number that wait before
// the tasks in the inputs.
func lagLine(s *page.Snapshot) line {
	l := line{{"lag     ", faint}, {count(s.Lag.Records) + " records", bold}, {"  oldest waits " + duration(s.Lag.Seconds), plain}}
	if s.Inputs == nil {
		return l
	}
	l = append(l, piece{"    inputs  ", faint}, piece{count(s.Inputs.Records) + " records", bold})
	if s.Inputs.Unknown > 0 {
		l = append(l, piece{fmt.Sprintf("  unknown partitions: %d", s.Inputs.Unknown), warn})
	}
	return l
}

// routes returns the table of routes with their verdicts.
func routes(s *page.Snapshot, width, most int) []line {
	number := func(title string, text func(e *page.Events) string) column {
		return column{title: title, number: true, cell: func(r int) piece { return piece{text: text(&s.Routes[r].Events)} }}
	}
	columns := []column{
		{title: "ROUTE", most: 24, cell: func(r int) piece {
			if s.Routes[r].Off {
				return piece{s.Routes[r].Name + " (off)", warn}
			}
			return piece{text: s.Routes[r].Name}
		}},
		number("PER SECOND", func(e *page.Events) string { return rate(e.PerSecond) }),
		number("DUPLICATES", func(e *page.Events) string { return percent(e.DuplicateShare) }),
		number("ALL", func(e *page.Events) string { return count(e.Total) }),
	}
	for _, v := range s.Events.Verdicts {
		columns = append(columns, number(strings.ToUpper(strings.ReplaceAll(v.Verdict, "_", " ")), func(e *page.Events) string {
			i := slices.IndexFunc(e.Verdicts, func(w page.Verdict) bool { return w.Verdict == v.Verdict })
			if i < 0 {
				return "0"
			}
			return count(e.Verdicts[i].Total)
		}))
	}
	rows := make([]int, min(len(s.Routes), most))
	for i := range rows {
		rows[i] = i
	}
	lines := table(columns, rows, width)
	if left := len(s.Routes) - len(rows); left > 0 {
		lines = append(lines, line{{fmt.Sprintf("and %d further routes", left), faint}})
	}
	return lines
}

// tasks returns the table of tasks in an order, beginning with the task at index from.
func tasks(s *page.Snapshot, width int, by order, from, most int) []line {
	if len(s.Tasks) == 0 {
		return []line{{{"no tasks", faint}}}
	}
	text := func(f func(t *page.Task) string) func(int) piece {
		return func(r int) piece { return piece{text: f(&s.Tasks[r])} }
	}
	columns := []column{
		{title: "TASK", most: max(20, width/3), cell: text(func(t *page.Task) string { return t.Task })},
		{title: "STATE", cell: func(r int) piece {
			t := &s.Tasks[r]
			switch {
			case running(t) == 1:
				return piece{t.State, good}
			case t.Restore != nil && t.Restore.Stalled:
				return piece{t.State, bad}
			}
			return piece{t.State, warn}
		}},
		{title: "RESTORE", cell: text(restoreText)},
		{title: "LAG", number: true, cell: text(func(t *page.Task) string {
			if t.LagRecords < 0 {
				return "unknown"
			}
			return count(t.LagRecords)
		})},
		{title: "WAITS", number: true, cell: text(func(t *page.Task) string { return duration(t.LagSeconds) })},
		{title: "KEYS", number: true, cell: text(func(t *page.Task) string { return count(float64(t.Keys)) })},
		{title: "OWNER", cell: text(func(t *page.Task) string {
			return t.Process + " " + strings.TrimPrefix(t.Worker, s.App+"-"+t.Process+"-")
		})},
	}
	if !slices.ContainsFunc(s.Tasks, func(t page.Task) bool { return t.Restore != nil }) {
		columns = slices.DeleteFunc(columns, func(c column) bool { return c.title == "RESTORE" })
	}
	rows := by.sorted(s.Tasks)
	from = min(from, max(0, len(rows)-most))
	shown := rows[from:min(len(rows), from+most)]
	lines := table(columns, shown, width)
	if left := len(rows) - len(shown); left > 0 {
		lines[0] = append(lines[0], piece{fmt.Sprintf("  %d to %d of %d", from+1, from+len(shown), len(rows)), faint})
	}
	return lines
}

func restoreText(t *page.Task) string {
	switch r := t.Restore; {
	case r == nil:
		return ""
	case r.Stalled:
		return count(r.RemainingRecords) + " left, makes no progress"
	case r.ETASeconds == nil:
		return count(r.RemainingRecords) + " left"
	default:
		return count(r.RemainingRecords) + " left, ready in " + duration(*r.ETASeconds)
	}
}

// warnings returns the latest lines of the log, beginning with the newest.
func warnings(s *page.Snapshot, most int) []line {
	var lines []line
	for _, e := range s.Log[:min(len(s.Log), most)] {
		p := warn
		if e.Level == "ERROR" {
			p = bad
		}
		l := line{{e.Time.Local().Format("15:04:05 "), faint}, {e.Text, p}}
		if e.Count > 1 {
			l = append(l, piece{fmt.Sprintf(" (%d times)", e.Count), faint})
		}
		if e.Advice != "" {
			l = append(l, piece{"  -> " + e.Advice, plain})
		}
		lines = append(lines, l)
	}
	return lines
}

// senders returns the table of the senders with the most duplicates.
func senders(s *page.Snapshot, width, most int) []line {
	if len(s.Senders) == 0 {
		return nil
	}
	rows := make([]int, min(len(s.Senders), most))
	for i := range rows {
		rows[i] = i
	}
	return table([]column{
		{title: "SENDER", most: 40, cell: func(r int) piece { return piece{text: s.Senders[r].Sender} }},
		{title: "ROUTE", most: 24, cell: func(r int) piece { return piece{text: s.Senders[r].Route} }},
		{title: "DUPLICATES", number: true, cell: func(r int) piece { return piece{text: count(s.Senders[r].Duplicates)} }},
		{title: "PER SECOND", number: true, cell: func(r int) piece { return piece{text: rate(s.Senders[r].PerSecond)} }},
	}, rows, width)
}
