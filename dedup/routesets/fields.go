package routesets

// fieldKind is the kind of every change of a field, why the change has that kind, and the steps that an
// operator takes instead if apply refuses the change.
type fieldKind struct {
	kind  Kind
	why   string
	steps []string
}

// fieldKinds has the fields whose texts in the two files are compared. Every other field has a function of
// its own, see comparedApart.
var fieldKinds = map[string]fieldKind{
	"match":             {Confirm, "records that the route no longer takes go to other routes or to none, and their keys with them", nil},
	"time":              {Confirm, "events get other times, so copies on both sides of the change may be further apart than the window", nil},
	"format":            {Confirm, "records in the old format cannot be read any more, so they become dead letters", nil},
	"formats":           {Confirm, "records in the old format cannot be read any more, so they become dead letters", nil},
	"fingerprint":       {Confirm, "a key stored before has other details: until its window is over, each event under it is a duplicate, whatever its details are", nil},
	"outcomes":          {Confirm, "the old topic is read until no claim of the namespace is open", nil},
	"max_key_bytes":     {Harmless, "", nil},
	"output":            {Harmless, "", nil},
	"headers":           {Harmless, "", nil},
	"duplicates":        {Harmless, "", nil},
	"count_hits":        {Harmless, "", nil},
	"on_missing_key":    {Harmless, "", nil},
	"on_late":           {Harmless, "", nil},
	"on_future":         {Harmless, "", nil},
	"on_after_window":   {Harmless, "", nil},
	"dead_letter":       {Harmless, "", nil},
	"limits":            {Harmless, "", nil},
	"collision":         {Harmless, "", nil},
	"on_state_failure":  {Harmless, "", nil},
	"answers":           {Harmless, "", nil},
	"replies":           {Harmless, "", nil},
	"lease":             {Harmless, "", nil},
	"executor_group":    {Harmless, "", nil},
	"while_in_progress": {Harmless, "", nil},
	"max_waiting":       {Harmless, "", nil},
	"result_limit":      {Harmless, "", nil},
	"request":           {Harmless, "", nil},
	"http":              {Harmless, "", nil},
	"sender":            {Harmless, "", nil},
	"quota":             {Harmless, "", nil},
}

// comparedApart are the fields that identify a route, or whose values and not whose texts are compared.
var comparedApart = []string{"name", "namespace", "topics", "enabled", "prepartitioned", "mode", "key", "tenant", "secret", "window", "grace", "skew", "shadow"}

// whyAdjacent is why adjacent_buckets cannot change. Without adjacent buckets the rows of a namespace are
// stored in packs, with adjacent buckets one by one.
const whyAdjacent = "the rows of its keys are stored in another form"

// The steps that an operator takes instead of a change that apply refuses.
var (
	stepsKey = []string{
		"try it out first: leave `key` as it was and write the new rule as `shadow: {sample: 100%, key: ...}`; apply that; oncebus shadow shows where it differs, and when it can be promoted",
		"or give the route a new namespace, and apply that with --forget-keys: duplicates of earlier events are then emitted",
		"or leave `key` as it was",
	}
	stepsTenant    = []string{"give the route a new namespace, and apply that with --forget-keys: duplicates of earlier events are then emitted", "or leave `tenant` as it was"}
	stepsAdjacent  = []string{"give the route a new namespace, and apply that with --forget-keys: duplicates of earlier events are then emitted", "or leave `adjacent_buckets` as it was"}
	stepsSecret    = []string{"give the route a new namespace, and apply that with --forget-keys", "or leave `secret` as it was"}
	stepsMode      = []string{"give the route a new name and a new namespace, and apply that with --forget-keys"}
	stepsPromote   = []string{"oncebus promote"}
	stepsRouted    = []string{"oncebus move --to-routed takes the keys to the repartition topic"}
	stepsPartition = []string{"leave `prepartitioned` as it was", "or add a route with another name, namespace and topics"}
)
