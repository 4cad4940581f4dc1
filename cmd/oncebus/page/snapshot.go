package page

import (
	"time"

	"oncebus/processor/app"
)

// Snapshot has the figures of a process at one moment. Its JSON names are an interface: 'oncebus top -o json',
// /snapshot and the page use them. Rates are averages over the last rateWindow or, if there is no older
// reading, over the time since the previous reading.
type Snapshot struct {
	Time     time.Time `json:"time"`
	Role     string    `json:"role"` // RoleRun, RoleIngress or RoleDemo
	Version  string    `json:"version"`
	App      string    `json:"app"`
	Instance string    `json:"instance"`
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`
	Reason   string    `json:"reason,omitempty"` // why the process is not ready
	// BrokerUp is absent in a process without tasks; in such a process, Reason says whether the broker
	// responds.
	BrokerUp *bool `json:"broker_up,omitempty"`

	Events Events  `json:"events"`
	Routes []Route `json:"routes"`
	Lag    Lag     `json:"lag"`
	// Inputs is absent in a process that routes no input.
	Inputs *Inputs `json:"inputs,omitempty"`
	// Hold is the hold in force; absent without one.
	Hold *Hold `json:"hold,omitempty"`
	// TimeHeld are the namespaces whose stream time is held back by an input, as in /state.
	TimeHeld []app.HeldTime `json:"time_held,omitempty"`
	Tasks    []Task         `json:"tasks"`
	Commits  []Commit       `json:"commits"`
	Disk     *Disk          `json:"disk,omitempty"`
	HTTP     *HTTP          `json:"http,omitempty"`
	// Senders are the senders with the most duplicates, beginning with the highest number, and "other" for all
	// further senders of a route. It is absent if no route has the field sender.
	Senders []Sender `json:"senders,omitempty"`
	// Shadows compares each shadow (a key rule that is tried out) with the rule in force; absent if there is no
	// shadow.
	Shadows []Shadow `json:"shadows,omitempty"`
	Process Process  `json:"process"`
	// Log has the latest warnings and errors, beginning with the newest.
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
	// Duplicates counts the events that were answered or dropped as duplicates: the verdicts duplicate,
	// in_progress and replayed. DuplicateShare is their share of the events in the last rateWindow, or of all
	// events if none came in that time.
	Duplicates     float64   `json:"duplicates"`
	DuplicateShare float64   `json:"duplicate_share"`
	Verdicts       []Verdict `json:"verdicts"` // the verdicts that have occurred, in the order of dedup.Verdicts
}

// Verdict counts the events with one verdict.
type Verdict struct {
	Verdict   string  `json:"verdict"`
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
}

// Route is a route in force with the numbers of its events.
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

// Lag sums up the lag of the tasks. Records is the sum over the tasks that know their lag; Seconds is the
// longest lag. Unknown is the number of tasks that have not read the end offset of their partition yet.
type Lag struct {
	Records float64 `json:"records"`
	Seconds float64 `json:"seconds"`
	Unknown int     `json:"unknown"`
}

// Inputs sums up the records that wait in the inputs that the process routes, also during a hold. Unknown is
// the number of partitions whose waiting records are not known.
type Inputs struct {
	Records float64 `json:"records"`
	Unknown int     `json:"unknown"`
}

// Hold stops the inputs of the app, see app.Hold.
type Hold struct {
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"` // the timestamp of the hold's row, in broker time
}

// Task is a task that the process owns.
type Task struct {
	Task       string    `json:"task"`
	Process    string    `json:"process"` // the instance that owns the task
	Worker     string    `json:"worker"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"` // why the task makes no progress
	Since      time.Time `json:"since"`
	LagRecords float64   `json:"lag_records"` // -1 while not known
	LagSeconds float64   `json:"lag_seconds"` // -1 while not known
	Keys       uint64    `json:"keys"`
	DiskBytes  uint64    `json:"disk_bytes"`
	Restore    *Restore  `json:"restore,omitempty"` // only while the task restores
}

// Restore is the progress of the restore of a task.
type Restore struct {
	RemainingRecords float64 `json:"remaining_records"`
	PerSecond        float64 `json:"per_second"`
	// ETASeconds is the time in seconds until the restore ends at this rate; absent while the restore reads
	// nothing.
	ETASeconds *float64 `json:"eta_seconds,omitempty"`
	Stalled    bool     `json:"stalled"` // the restore has read nothing for a minute
}

// Commit has the commit times of a stage in the last minute, in seconds. If the stage had no commit in that
// minute, the times are those since the start. P50 and P99 are interpolated within the buckets of
// oncebus_commit_seconds.
type Commit struct {
	Stage     string  `json:"stage"`
	Total     float64 `json:"total"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_seconds"`
	P99       float64 `json:"p99_seconds"`
}

// Disk has the size of the process's local state, and the free space of its disk.
type Disk struct {
	StateBytes float64 `json:"state_bytes"`
	FreeBytes  float64 `json:"free_bytes"`
	Paused     bool    `json:"paused"` // tasks wait for disk space
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

// Shadow counts the events of a route that has a shadow, in the tasks of this process. See dedup.ShadowFate.
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

// Process has the resources that the process uses.
type Process struct {
	CPU           float64 `json:"cpu"` // cores
	ResidentBytes float64 `json:"resident_bytes"`
	Goroutines    float64 `json:"goroutines"`
}

// Entry is a line of the log at level WARN or ERROR.
type Entry struct {
	Time   time.Time `json:"time"` // of the last of the equal lines
	Level  string    `json:"level"`
	Text   string    `json:"text"`
	Detail string    `json:"detail,omitempty"` // the fields of the line
	Count  int       `json:"count"`            // how many equal lines followed each other
	Advice string    `json:"advice,omitempty"` // what an operator can do
	Page   string    `json:"page,omitempty"`   // the section that tells more, as FILE.md#section
}
