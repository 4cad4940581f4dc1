package page

import (
	"time"

	"oncebus/processor/app"
)

// Snapshot is what a process knows about itself at one time. Its JSON names are an
// interface: 'oncebus top -o json', /snapshot and the page have them. Rates are those of
// the last rateWindow, or since the reading before it.
type Snapshot struct {
	Time     time.Time `json:"time"`
	Role     string    `json:"role"` // RoleRun, RoleIngress or RoleDemo
	Version  string    `json:"version"`
	App      string    `json:"app"`
	Instance string    `json:"instance"`
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`
	Reason   string    `json:"reason,omitempty"` // why it is not ready
	// BrokerUp is absent in a process without tasks, whose Reason says it.
	BrokerUp *bool `json:"broker_up,omitempty"`

	Events Events  `json:"events"`
	Routes []Route `json:"routes"`
	Lag    Lag     `json:"lag"`
	// Inputs is absent in a process that routes no input.
	Inputs *Inputs `json:"inputs,omitempty"`
	// Hold is the hold in force; absent without one.
	Hold *Hold `json:"hold,omitempty"`
	// TimeHeld are the namespaces whose stream time an input keeps back, as /state has them.
	TimeHeld []app.HeldTime `json:"time_held,omitempty"`
	Tasks    []Task         `json:"tasks"`
	Commits  []Commit       `json:"commits"`
	Disk     *Disk          `json:"disk,omitempty"`
	HTTP     *HTTP          `json:"http,omitempty"`
	// Senders are those with the most duplicates, first the one with most, and "other" for
	// the rest of each route; absent if no route says what identifies a sender.
	Senders []Sender `json:"senders,omitempty"`
	// Shadows compares each key rule on trial with the one in force; absent without any.
	Shadows []Shadow `json:"shadows,omitempty"`
	Process Process  `json:"process"`
	// Log has the last warnings and errors, the newest first.
	Log []Entry `json:"log"`
}

// Roles of a process.
const (
	RoleRun     = "run"
	RoleIngress = "ingress"
	RoleDemo    = "demo"
)

// Events counts the judged events of a process or a route.
type Events struct {
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
	// Duplicates counts those that were answered or dropped as duplicates: the verdicts
	// duplicate, in_progress and replayed. DuplicateShare is that of the last rateWindow, or
	// of all events if none came in it.
	Duplicates     float64   `json:"duplicates"`
	DuplicateShare float64   `json:"duplicate_share"`
	Verdicts       []Verdict `json:"verdicts"` // that occurred, in the order of dedup.Verdicts
}

// Verdict counts the events with one verdict.
type Verdict struct {
	Verdict   string  `json:"verdict"`
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
}

// Route is one route in force with its events.
type Route struct {
	Name       string   `json:"name"`
	Namespace  string   `json:"namespace"`
	Mode       string   `json:"mode"`          // plain or claim
	Off        bool     `json:"off,omitempty"` // enabled: false
	Topics     []string `json:"topics"`
	Output     string   `json:"output"`
	DeadLetter string   `json:"dead_letter"`
	Window     string   `json:"window"`
	Key        string   `json:"key"`
	Events     Events   `json:"events"`
}

// Lag sums the lag of the tasks. Records is that of the tasks that know it, Seconds is the
// longest. Unknown counts the tasks that have not read their partition's end.
type Lag struct {
	Records float64 `json:"records"`
	Seconds float64 `json:"seconds"`
	Unknown int     `json:"unknown"`
}

// Inputs sums the records that wait in the inputs which the process routes, also in a hold.
// Unknown counts the partitions of which the number is not known.
type Inputs struct {
	Records float64 `json:"records"`
	Unknown int     `json:"unknown"`
}

// Hold stops the inputs of the app, see app.Hold.
type Hold struct {
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"` // of its row, in broker time
}

// Task is one task of the process.
type Task struct {
	Task       string    `json:"task"`
	Process    string    `json:"process"` // the instance that owns it
	Worker     string    `json:"worker"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"` // why it makes no progress
	Since      time.Time `json:"since"`
	LagRecords float64   `json:"lag_records"` // -1 while not known
	LagSeconds float64   `json:"lag_seconds"` // -1 while not known
	Keys       uint64    `json:"keys"`
	DiskBytes  uint64    `json:"disk_bytes"`
	Restore    *Restore  `json:"restore,omitempty"` // while it restores
}

// Restore is how far the restore of a task is.
type Restore struct {
	RemainingRecords float64 `json:"remaining_records"`
	PerSecond        float64 `json:"per_second"`
	// ETASeconds is when the restore ends at this rate; absent while it reads nothing.
	ETASeconds *float64 `json:"eta_seconds,omitempty"`
	Stalled    bool     `json:"stalled"` // it has read nothing for a minute
}

// Commit has the commit times of one stage in the last minute, in seconds; those since the
// start if it had none. P50 and P99 are interpolated in the buckets of
// oncebus_commit_seconds.
type Commit struct {
	Stage     string  `json:"stage"`
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_seconds"`
	P99       float64 `json:"p99_seconds"`
}

// Disk is the local state of the process.
type Disk struct {
	StateBytes float64 `json:"state_bytes"`
	FreeBytes  float64 `json:"free_bytes"`
	Paused     bool    `json:"paused"` // tasks wait for space
}

// HTTP has the requests of the ingress.
type HTTP struct {
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
	InFlight  float64 `json:"in_flight"`
	P50       float64 `json:"p50_seconds"`
	P99       float64 `json:"p99_seconds"`
	Codes     []Code  `json:"codes"` // by status code
}

// Code counts the responses with one status code.
type Code struct {
	Code      string  `json:"code"`
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
}

// Shadow counts the events of a shadow's route in the tasks of this process, see
// dedup.ShadowFate.
type Shadow struct {
	Route     string  `json:"route"`
	BothEmit  float64 `json:"both_emit"`
	BothDrop  float64 `json:"both_drop"`
	WouldDrop float64 `json:"would_drop"`
	WouldEmit float64 `json:"would_emit"`
	NoKey     float64 `json:"no_key"`
}

// Sender counts the duplicates of one sender of a route.
type Sender struct {
	Route      string  `json:"route"`
	Sender     string  `json:"sender"`
	Duplicates float64 `json:"duplicates"`
	PerSecond  float64 `json:"per_second"`
}

// Process has what the process uses.
type Process struct {
	CPU           float64 `json:"cpu"` // cores
	ResidentBytes float64 `json:"resident_bytes"`
	Goroutines    float64 `json:"goroutines"`
}

// Entry is a line of the log at level WARN or ERROR.
type Entry struct {
	Time   time.Time `json:"time"` // of the last one
	Level  string    `json:"level"`
	Text   string    `json:"text"`
	Detail string    `json:"detail,omitempty"` // its fields
	Count  int       `json:"count"`            // equal lines in a row
	Advice string    `json:"advice,omitempty"` // what to do
	Page   string    `json:"page,omitempty"`   // the section that says more, as FILE.md#section
}
