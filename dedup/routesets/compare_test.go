package routesets

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"oncebus/dedup/rules"
)

const orders = `
  - name: orders
    topics: [orders.raw]
    key: [{field: id}]
    window: 1h
    output: orders.unique
`

const claims = `
  - name: jobs
    topics: [jobs.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: jobs.run
    outcomes: jobs.outcomes
    replies: jobs.replies
`

func parse(t *testing.T, routes string) *rules.Routes {
	t.Helper()
	parsed, err := rules.ParseRoutes("routes.yaml", []byte("routes:"+routes))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// alerts is orders under another name.
func alerts() string { return strings.ReplaceAll(orders, "orders", "alerts") }

func with(route, field string) string { return route + "    " + field + "\n" }

// TestEachChangeHasItsKind: the table of kinds, a line each.
func TestEachChangeHasItsKind(t *testing.T) {
	swap := func(text, old, next string) string {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the routes", old)
		}
		return strings.ReplaceAll(text, old, next)
	}
	matched := func(name, value string) string {
		return strings.ReplaceAll(with(orders, "match: {field: type, in: ["+value+"]}"), "name: orders", "name: "+name)
	}
	for name, c := range map[string]struct {
		before, after string
		history       History
		forget        []string
		want          []string // kind route field
	}{
		"nothing":                               {before: orders, after: orders},
		"comments and format":                   {before: orders, after: swap(orders, "    window: 1h\n", "    # an hour\n    window:   \"1h\"\n")},
		"the same window spelled other":         {before: orders, after: swap(orders, "1h", "60m")},
		"route on a topic of its own":           {before: orders, after: orders + alerts(), want: []string{"harmless alerts "}},
		"output":                                {before: orders, after: swap(orders, "orders.unique", "orders.clean"), want: []string{"harmless orders output"}},
		"duplicates":                            {before: orders, after: with(orders, "duplicates: forward"), want: []string{"harmless orders duplicates"}},
		"on_late":                               {before: orders, after: with(orders, "on_late: drop"), want: []string{"harmless orders on_late"}},
		"limits":                                {before: orders, after: with(orders, "limits: {live_keys: 5}"), want: []string{"harmless orders limits"}},
		"fingerprint":                           {before: orders, after: with(orders, "fingerprint: [amount]"), want: []string{"confirm orders fingerprint"}},
		"switched off":                          {before: orders, after: with(orders, "enabled: false"), want: []string{"confirm orders enabled"}},
		"switched on":                           {before: with(orders, "enabled: false"), after: with(orders, "enabled: true"), want: []string{"confirm orders enabled"}},
		"on in other words":                     {before: orders, after: with(orders, "enabled: true")},
		"http":                                  {before: orders, after: with(orders, "http: {path: /orders, signature: {scheme: none}}"), want: []string{"harmless orders http"}},
		"lease":                                 {before: claims, after: with(claims, "lease: 1m"), want: []string{"harmless jobs lease"}},
		"rename with its namespace":             {before: orders, after: with(swap(orders, "name: orders", "name: sales"), "namespace: orders"), want: []string{"harmless sales name"}},
		"rename without":                        {before: orders, after: swap(orders, "name: orders", "name: sales"), want: []string{"confirm sales ", "confirm orders ", "refused orders namespace"}},
		"window longer":                         {before: orders, after: swap(orders, "1h", "24h"), want: []string{"confirm orders window"}},
		"window shorter":                        {before: orders, after: swap(orders, "1h", "30m"), want: []string{"confirm orders window", "confirm orders skew"}},
		"grace":                                 {before: orders, after: with(orders, "grace: 1m"), want: []string{"confirm orders grace"}},
		"skew":                                  {before: orders, after: with(orders, "skew: 1m"), want: []string{"confirm orders skew"}},
		"route removed":                         {before: orders + alerts(), after: orders, want: []string{"confirm alerts "}},
		"match":                                 {before: matched("orders", "a"), after: matched("orders", "b"), want: []string{"confirm orders match"}},
		"time":                                  {before: orders, after: with(orders, "time: {field: at, format: unix_ms}"), want: []string{"confirm orders time"}},
		"route on a topic that is read":         {before: matched("orders", "a"), after: matched("orders", "a") + matched("others", "b"), want: []string{"confirm others "}},
		"order of routes":                       {before: matched("orders", "a, c") + matched("others", "b, c"), after: matched("others", "b, c") + matched("orders", "a, c"), want: []string{"confirm orders match"}},
		"topic added":                           {before: orders, after: swap(orders, "[orders.raw]", "[orders.raw, more.raw]"), want: []string{"harmless orders topics"}},
		"topic to another namespace":            {before: swap(orders, "[orders.raw]", "[orders.raw, more.raw]") + alerts(), after: orders + swap(alerts(), "[alerts.raw]", "[alerts.raw, more.raw]"), want: []string{"confirm orders topics", "confirm alerts topics"}},
		"topic back with its backlog":           {before: orders, after: orders + alerts(), history: History{Former: []*rules.Routes{parse(t, alerts())}}, want: []string{"confirm alerts "}},
		"namespace vanishes":                    {before: orders, after: with(orders, "namespace: fresh"), want: []string{"confirm orders namespace", "refused orders namespace"}},
		"namespace gives up its keys":           {before: orders, after: with(orders, "namespace: fresh"), forget: []string{"orders"}, want: []string{"confirm orders namespace", "confirm orders namespace"}},
		"mode":                                  {before: claims, after: swap(orders, "orders", "jobs"), want: []string{"refused jobs mode", "confirm jobs outcomes"}},
		"secret":                                {before: orders, after: with(orders, "secret: true"), want: []string{"refused orders secret"}},
		"key":                                   {before: orders, after: swap(orders, "field: id", "field: number"), want: []string{"refused orders key"}},
		"key source appended":                   {before: orders, after: swap(orders, "{field: id}", "{field: id}, {field: number}, raw"), want: []string{"confirm orders key"}},
		"key source before the others":          {before: orders, after: swap(orders, "{field: id}", "{field: number}, {field: id}"), want: []string{"refused orders key"}},
		"key source removed":                    {before: swap(orders, "{field: id}", "{field: id}, {field: number}"), after: orders, want: []string{"refused orders key"}},
		"key source appended, and a normaliser": {before: orders, after: swap(orders, "{field: id}", "{field: id, normalise: trim}, {field: number}"), want: []string{"refused orders key"}},
		"field appended to a hash":              {before: swap(orders, "field: id", "hash: [id]"), after: swap(orders, "field: id", "hash: [id, number]"), want: []string{"refused orders key"}},
		"key source appended, and a secret":     {before: orders, after: with(swap(orders, "{field: id}", "{field: id}, {field: number}"), "secret: true"), want: []string{"refused orders secret"}},
		"adjacent buckets appended":             {before: orders, after: swap(orders, "{field: id}", "{field: id}, {order: {adjacent_buckets: true}}") + "    fingerprint: [number]\n", want: []string{"refused orders key", "confirm orders fingerprint"}},
		"adjacent buckets switched on":          {before: bucketed(""), after: bucketed(", adjacent_buckets: true"), want: []string{"refused orders key"}},
		"adjacent buckets switched off":         {before: bucketed(", adjacent_buckets: true"), after: bucketed(""), want: []string{"refused orders key"}},
		"adjacent buckets off in other words":   {before: bucketed(""), after: bucketed(", adjacent_buckets: false")},
		"adjacent buckets in a namespace that comes back": {before: alerts(), after: alerts() + bucketed(", adjacent_buckets: true"),
			history: History{Former: []*rules.Routes{parse(t, bucketed(""))}, Namespaces: map[string]Namespace{"orders": pinOf(parse(t, bucketed("")).Routes[0])}}, want: []string{"confirm orders ", "refused orders namespace"}},
		"tenant":                        {before: orders, after: with(orders, "tenant: {header: t}"), want: []string{"refused orders tenant"}},
		"quota":                         {before: with(orders, "tenant: {header: t}"), after: with(with(orders, "tenant: {header: t}"), "quota: {keys: 5}"), want: []string{"harmless orders quota"}},
		"tenant elsewhere":              {before: with(orders, "tenant: {header: t}"), after: with(orders, "tenant: {field: t}"), want: []string{"refused orders tenant"}},
		"tenant no more":                {before: with(orders, "tenant: {header: t}"), after: orders, want: []string{"refused orders tenant"}},
		"tenant by default":             {before: with(orders, "tenant: {header: t}"), after: with(orders, "tenant: {header: t, default: a}"), want: []string{"harmless orders tenant"}},
		"tenant by another default":     {before: with(orders, "tenant: {header: t, default: a}"), after: with(orders, "tenant: {header: t, default: b}"), want: []string{"confirm orders tenant"}},
		"tenant by no default":          {before: with(orders, "tenant: {header: t, default: a}"), after: with(orders, "tenant: {header: t}"), want: []string{"confirm orders tenant"}},
		"tenant and namespace":          {before: orders, after: with(with(orders, "namespace: fresh"), "tenant: {header: t}"), forget: []string{"orders"}, want: []string{"confirm orders namespace", "confirm orders namespace"}},
		"another part of the key":       {before: swap(orders, "field: id", "fields: [id]"), after: swap(orders, "field: id", "fields: [id, {header: x}]"), want: []string{"refused orders key"}},
		"prepartitioned":                {before: orders, after: with(orders, "prepartitioned: true"), want: []string{"refused orders prepartitioned"}},
		"outcomes":                      {before: claims, after: swap(claims, "jobs.outcomes", "jobs.done"), want: []string{"confirm jobs outcomes"}},
		"claim route removed":           {before: orders + claims, after: orders, want: []string{"confirm jobs "}},
		"name with another mode":        {before: orders, after: orders + swap(alerts(), "name: alerts", "name: jobs"), history: History{Former: []*rules.Routes{parse(t, claims)}}, want: []string{"harmless jobs ", "refused jobs name"}},
		"shadow begins":                 {before: orders, after: with(orders, "shadow: {key: [{field: number}]}"), want: []string{"harmless orders shadow"}},
		"shadow removed":                {before: with(orders, "shadow: {key: [{field: number}]}"), after: orders, want: []string{"harmless orders shadow"}},
		"shadow with another rule":      {before: with(orders, "shadow: {key: [{field: number}]}"), after: with(orders, "shadow: {key: [{field: other}]}"), want: []string{"harmless orders shadow", "harmless orders shadow"}},
		"shadow of a sample to a full":  {before: with(orders, "shadow: {key: [{field: number}]}"), after: with(orders, "shadow: {sample: 100%, key: [{field: number}]}"), want: []string{"harmless orders shadow", "harmless orders shadow"}},
		"shadow changed under its name": {before: with(orders, "shadow: {name: a, key: [{field: number}]}"), after: with(orders, "shadow: {name: a, key: [{field: other}]}"), want: []string{"refused orders shadow"}},
		"shadow comes back": {before: orders, after: with(orders, "shadow: {name: a, key: [{field: number}]}"), history: History{Namespaces: map[string]Namespace{"orders~a": {}}},
			want: []string{"refused orders shadow"}},
		"shadow promoted":         {before: with(orders, "shadow: {name: a, sample: 100%, key: [{field: number}]}"), after: with(swap(orders, "field: id", "field: number"), "namespace: orders~a"), want: []string{"refused orders key"}},
		"sampled shadow promoted": {before: with(orders, "shadow: {name: a, key: [{field: number}]}"), after: with(swap(orders, "field: id", "field: number"), "namespace: orders~a"), want: []string{"refused orders key"}},
		"promoted with another key": {before: with(orders, "shadow: {name: a, sample: 100%, key: [{field: number}]}"), after: with(swap(orders, "field: id", "field: other"), "namespace: orders~a"),
			want: []string{"refused orders key"}},
		"promoted with another window": {before: with(orders, "shadow: {name: a, sample: 100%, key: [{field: number}]}"), after: with(swap(swap(orders, "field: id", "field: number"), "window: 1h", "window: 2h"), "namespace: orders~a"),
			want: []string{"refused orders window"}},
		"namespace of a removed route with another key rule": {before: orders, after: with(swap(alerts(), "field: id", "field: other"), "namespace: orders"),
			history: History{Namespaces: map[string]Namespace{"orders": pinOf(parse(t, orders).Routes[0])}}, want: []string{"harmless alerts ", "refused alerts namespace", "confirm orders "}},
		"namespace of a removed route with its key rule": {before: orders, after: with(alerts(), "namespace: orders"),
			history: History{Namespaces: map[string]Namespace{"orders": pinOf(parse(t, orders).Routes[0])}}, want: []string{"harmless alerts ", "confirm orders "}},
		"namespace of a removed route with a further source": {before: orders, after: with(swap(alerts(), "{field: id}", "{field: id}, raw"), "namespace: orders"),
			history: History{Namespaces: map[string]Namespace{"orders": pinOf(parse(t, orders).Routes[0])}}, want: []string{"harmless alerts ", "confirm orders "}},
		"key source appended to a shadow": {before: with(orders, "shadow: {name: a, key: [{field: number}]}"), after: with(orders, "shadow: {name: a, key: [{field: number}, raw]}"), want: []string{"refused orders shadow"}},
		"namespaces swapped, of different key rules": {before: orders + swap(alerts(), "field: id", "field: other"),
			after:   with(orders, "namespace: alerts") + with(swap(alerts(), "field: id", "field: other"), "namespace: orders"),
			history: History{Namespaces: map[string]Namespace{"orders": pinOf(parse(t, orders).Routes[0]), "alerts": pinOf(parse(t, swap(alerts(), "field: id", "field: other")).Routes[0])}},
			want:    []string{"confirm orders namespace", "refused orders namespace", "confirm alerts namespace", "refused alerts namespace"}},
		"namespace with another key rule": {before: orders, after: orders + alerts(), history: History{Namespaces: map[string]Namespace{"alerts": {KeyRule: "v1", Mode: "plain"}}},
			want: []string{"harmless alerts ", "refused alerts namespace"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, change := range Compare(parse(t, c.before), parse(t, c.after), c.history, c.forget) {
				got = append(got, fmt.Sprintf("%v %s %s", change.Kind, change.Route, change.Field))
				if change.Kind == Refused && len(change.Steps) == 0 {
					t.Errorf("%s is refused without steps", change.What)
				}
				if change.Kind != Harmless && change.Why == "" {
					t.Errorf("%s has no reason", change.What)
				}
			}
			for _, list := range []*[]string{&got, &c.want} {
				for i := range *list {
					(*list)[i] = strings.TrimSpace((*list)[i])
				}
				if name != "mode" {
					continue
				}
				*list = slices.DeleteFunc(*list, func(s string) bool { return strings.HasPrefix(s, "harmless") })
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("changes %q, want %q", got, c.want)
			}
		})
	}
}

// pinOf is what an app pins of the namespace of a route.
// bucketed is a route of orders with more settings of its key.
func bucketed(more string) string {
	return strings.Replace(orders, "{field: id}", "{order: {account: account, step: 1m"+more+"}}", 1)
}

func pinOf(r *rules.Route) Namespace { return Namespace{KeyRule: r.KeyRule(), Mode: r.Mode.String()} }

// TestEachFieldHasAKind: a field that is added to the routes file needs a decision here.
func TestEachFieldHasAKind(t *testing.T) {
	for _, field := range rules.RouteFields() {
		_, byText := fieldKinds[field]
		if apart := slices.Contains(comparedApart, field); apart == byText {
			t.Errorf("field %s: by its text %v, apart %v; want one of both", field, byText, apart)
		}
	}
}

// TestReasonOfAChangedDefaultTenant protects that the reason which an operator confirms is true: without a default
// tenant, records that name none are not emitted again, but become dead letters.
func TestReasonOfAChangedDefaultTenant(t *testing.T) {
	withDefault := func(name string) string { return with(orders, "tenant: {header: t"+name+"}") }
	for after, want := range map[string]string{
		withDefault(", default: b"): "copies of stored events that name no tenant are emitted again",
		withDefault(""):             "records that name no tenant become dead letters",
	} {
		changes := Compare(parse(t, withDefault(", default: a")), parse(t, after), History{}, nil)
		if len(changes) != 1 || changes[0].Why != want {
			t.Errorf("%+v, want the reason %q", changes, want)
		}
	}
}
