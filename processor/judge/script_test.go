package judge_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestScripts runs the scripts of testdata: the router and the judge, with a real
// store and without a broker. Logs, offsets and clock are the script's.
//
// A script is a text of steps, one a line. What stands before its first scenario is
// run before each of them. A step may have indented lines:
//
//	| TEXT     a line of a routes file
//	+ FIELDS   further fields of the step or of the expectation above
//	TOPIC ...  a record that the step emits, with FIELDS; "999x TOPIC" stands for 999
//	           equal expectations
//	nothing    the step emits no record
//
// The records of internal topics, except of the verdicts topic, are no emissions. All
// others must be expected, in order.
//
// The steps:
//
//	base TIME            the instant that all durations of the script are counted from
//	both ways            run the scenarios as they are, and with every route prepartitioned
//	partitions N         of every topic; 1 unless set
//	topic NAME FIELDS    settings: max.message.bytes, before.max, after.max, compacted
//	routes               the routes file follows, or its path in the repository; a later
//	                     one is used from the next restart on
//	also                 lines that are added to the end of the routes file follow
//	sets                 the app has route sets: a start with other routes puts a new one in force
//	change from=TEXT to=TEXT   replaces a text in the routes file
//	shape NAME TOPIC FIELDS  a record with gaps, {NAME}, for events
//	at DURATION          set the broker's clock
//	refuse TOPIC TEXT    the broker refuses for good what has a text in its value, and every
//	                     record without a TEXT; "refuse nothing" ends it
//	event SHAPE-OR-TOPIC/PARTITION FIELDS    produce a record; "1000x event" repeats it
//	outcome TOPIC/PARTITION KIND FIELDS      produce an outcome of the record of=NAME
//	query SHAPE-OR-TOPIC/PARTITION FIELDS    ask for the outcome of an event, with ask=N
//	erase POSITION       erase the row of the event at topic/partition/offset, as the command
//	                     forget does. A later step with the position names that row, too,
//	                     whatever row the key has then. "aborted": abort the transaction
//	seed ROUTE id=ID first=DURATION   a seed in the repartition topic; number=N in its file,
//	                     result=TEXT of a completed claim. It emits nothing
//	streamtime ROUTE at=DURATION   the stream time of another cluster, in each partition;
//	                     since=DURATION late-before=DURATION of a changed window
//	progress DURATION FIELDS   a progress record: the outcomes stored before are read.
//	                     executor=DURATION: the executors committed what was dispatched
//	                     before; unread=N: not those of partition N; partitions=N.
//	                     One every 30 s since the last one says nothing, but for
//	                     heartbeats=false
//	hold                 the tasks judge nothing until the next resume or abort
//	resume               judge what is held, in one transaction
//	abort                judge what is held, abort the transaction, and hold
//	restart              stop, and start with the same state
//	rebuild              stop, and start without state: it comes from the changelog
//	lose store           the local state cannot be used any more
//	restore store        it can be used again
//
// And the checks, which emit nothing:
//
//	counts ROUTE VERDICT=N   events since the last start, by verdict
//	outcomes ROUTE KIND/RESULT=N   outcomes since the last start
//	expired ROUTE N          leases that expired since the last start
//	unanswered ROUTE CAUSE=N requests that were answered without an outcome, by cause
//	hits ROUTE ID=N      duplicates in the row of an id
//	ended ROUTE WHAT=N keys whose window or retention ended
//	keys NAMESPACE STATUS=N  keys of the committed checkpoints; waiting=N requests
//	known NAMESPACE FIELDS   since and late-before of the committed checkpoints, as durations; none=true
//	duplicates ROUTE FIELDS  committed duplicates: 2006-01-02=N by day, days=N of them,
//	                     within.SECONDS=N by delay, more than the bound below, from.NAME=N by sender, senders=N of them
//	seeds FATE=N             what became of the seeds; number=N is one of those too late
//	log TEXT                 a line of the log contains it
//
// Fields are NAME=VALUE. A value is a word, a quoted Go string, or null. Within it
// {NAME} is a gap that a field of the event fills, {TEXT*N} stands for N times the
// text, {~*N} for N characters that no codec shortens by half, {n} for the number of a repetition, and {ms:NAME} for the instant of a gap that
// is a duration, in ms. Fields of records:
//
//	key, value     null unless the shape has one
//	time           the timestamp, as a duration; 0 unless set
//	header.NAME    a header, in order; header.NAME*N is N of them
//	ask=N          the address of in-flight request N
//	as=NAME        remember the record by this name
//	of=NAME        an outcome has token and key of the emitted record of that name
//	token.namespace, token.app, token.attempt, token.partition, token.digest, token.tail   another token than that
//
// Fields of expectations: key, value, time, header.NAME, any header of oncebus
// without its prefix (dedup-key is oncebus-key), value.bytes for the length,
// NAME~TEXT for a value that contains the text, NAME=absent, NAME=@RECORD for that of
// a remembered record, as=NAME, same (key, value, time and foreign headers are the
// event's; same=NAME: those of a remembered one), place=@RECORD (the number that
// chooses the partition), and unmarked (no oncebus header but route, key and verdict).
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			s, err := readScript(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, scenario := range s.scenarios {
				t.Run(scenario.name, func(t *testing.T) {
					t.Parallel()
					steps := slices.Concat(s.preamble, scenario.steps)
					if !slices.ContainsFunc(steps, func(st step) bool { return st.command == "both" }) {
						runScenario(t, steps, false)
						return
					}
					t.Run("routed", func(t *testing.T) { t.Parallel(); runScenario(t, steps, false) })
					t.Run("prepartitioned", func(t *testing.T) { t.Parallel(); runScenario(t, steps, true) })
				})
			}
		})
	}
}

// script is a file of scenarios.
type script struct {
	preamble  []step
	scenarios []scenario
}

type scenario struct {
	name  string
	steps []step
}

// step is a line of a script with its indented lines.
type step struct {
	at      string // file:line
	repeat  int
	command string
	words   []string // without "="
	fields  []field
	text    string // of | lines
	rest    string // the line behind its command
	expects []expectation
	nothing bool
}

// expectation is a record that a step emits.
type expectation struct {
	at     string
	repeat int
	topic  string
	words  []string
	fields []field
}

type field struct {
	name, value  string
	null, approx bool // null; NAME~VALUE
}

// readScript reads a file of scenarios. Each scenario must expect something.
func readScript(file string) (*script, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &script{}
	steps := &s.preamble
	for n, line := range strings.Split(string(data), "\n") {
		at := fmt.Sprintf("%s:%d", file, n+1)
		trimmed := strings.TrimSpace(line)
		switch name, isScenario := strings.CutPrefix(line, "scenario "); {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case isScenario:
			s.scenarios = append(s.scenarios, scenario{name: name})
			steps = &s.scenarios[len(s.scenarios)-1].steps
		case line[0] != ' ' && line[0] != '\t':
			var st step
			if st, err = readStep(at, trimmed); err == nil {
				*steps = append(*steps, st)
			}
		case len(*steps) == 0:
			err = errors.New("an indented line without a step")
		default:
			err = (*steps)[len(*steps)-1].readIndented(at, trimmed)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	if len(s.scenarios) == 0 {
		return nil, fmt.Errorf("%s: no scenario", file)
	}
	for _, scenario := range s.scenarios {
		if !slices.ContainsFunc(scenario.steps, func(st step) bool { return st.nothing || len(st.expects) > 0 || checks[st.command] }) {
			return nil, fmt.Errorf("%s: scenario %s expects nothing", file, scenario.name)
		}
	}
	return s, nil
}

var (
	checks   = map[string]bool{"counts": true, "outcomes": true, "expired": true, "unanswered": true, "ended": true, "hits": true, "keys": true, "known": true, "log": true, "seeds": true}
	repeated = regexp.MustCompile(`^(\d+)x `)
)

func cutRepeat(line string) (n int, rest string) {
	m := repeated.FindStringSubmatch(line)
	if m == nil {
		return 1, line
	}
	n, _ = strconv.Atoi(m[1])
	return n, line[len(m[0]):]
}

func readStep(at, line string) (step, error) {
	st := step{at: at}
	st.repeat, line = cutRepeat(line)
	st.command, st.rest, _ = strings.Cut(line, " ")
	if st.command == "log" || st.command == "base" {
		return st, nil
	}
	var err error
	st.words, st.fields, err = readFields(st.rest)
	return st, err
}

func (st *step) readIndented(at, line string) error {
	switch {
	case strings.HasPrefix(line, "|"):
		st.text += strings.TrimPrefix(strings.TrimPrefix(line, "|"), " ") + "\n"
		return nil
	case line == "nothing":
		st.nothing = true
		return nil
	}
	if further, ok := strings.CutPrefix(line, "+ "); ok {
		words, fields, err := readFields(further)
		to, toWords := &st.fields, &st.words
		if n := len(st.expects); n > 0 {
			to, toWords = &st.expects[n-1].fields, &st.expects[n-1].words
		}
		*to, *toWords = append(*to, fields...), append(*toWords, words...)
		return err
	}
	e := expectation{at: at}
	var err error
	e.repeat, line = cutRepeat(line)
	topic, rest, _ := strings.Cut(line, " ")
	e.topic = topic
	e.words, e.fields, err = readFields(rest)
	st.expects = append(st.expects, e)
	return err
}

// readFields splits a line into words and fields.
func readFields(line string) (words []string, fields []field, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		end := strings.IndexAny(line, " =~")
		if end < 0 || line[end] == ' ' {
			word, rest, _ := strings.Cut(line, " ")
			words, line = append(words, word), rest
			continue
		}
		f := field{name: line[:end], approx: line[end] == '~'}
		line = line[end+1:]
		if strings.HasPrefix(line, `"`) || strings.HasPrefix(line, "`") {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, nil, fmt.Errorf("field %s: %w", f.name, err)
			}
			f.value, _ = strconv.Unquote(quoted)
			line = line[len(quoted):]
			if line != "" && line[0] != ' ' {
				return nil, nil, fmt.Errorf("field %s: text behind its quotes", f.name)
			}
		} else {
			f.value, line, _ = strings.Cut(line, " ")
			f.null = f.value == "null"
		}
		fields = append(fields, f)
	}
	return words, fields, nil
}

// values fill the gaps of a shape.
type values map[string]string

var gap = regexp.MustCompile(`\{(?:([^{}":,*\s]+)\*(\d+)|(ms:)?([a-z][a-z0-9]*))\}`)

// noise returns n characters that no codec shortens by half.
func noise(n int) string {
	raw, source := make([]byte, n), rand.NewChaCha8([32]byte{})
	_, _ = source.Read(raw) // never fails
	return base64.RawStdEncoding.EncodeToString(raw)[:n]
}

// fill replaces the gaps of a text. used has the names that it takes.
func (v values) fill(text string, base int64, used map[string]bool) (string, error) {
	var mistakes []error
	filled := gap.ReplaceAllStringFunc(text, func(found string) string {
		m := gap.FindStringSubmatch(found)
		if m[2] != "" {
			n, _ := strconv.Atoi(m[2])
			if m[1] == "~" {
				return noise(n)
			}
			return strings.Repeat(m[1], n)
		}
		value, ok := v[m[4]]
		if !ok {
			mistakes = append(mistakes, fmt.Errorf("no field fills the gap %s", found))
		}
		used[m[4]] = true
		if m[3] == "" {
			return value
		}
		d, err := time.ParseDuration(value)
		mistakes = append(mistakes, err)
		return strconv.FormatInt(base+d.Milliseconds(), 10)
	})
	return filled, errors.Join(mistakes...)
}
