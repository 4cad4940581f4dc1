package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"oncebus/dedup/rules"
)

func describe(r *rules.Route) []fact {
	path := "through the repartition topic"
	if r.Prepartitioned {
		path = "partitioned by the dedup key already (prepartitioned)"
	}
	keys := make([]string, len(r.Keys))
	for i := range r.Keys {
		keys[i] = r.Keys[i].String()
	}
	hash := "SHA-256"
	if r.Secret {
		hash = "HMAC-SHA-256 with the secret"
	}
	namespace, match, eventTime := "", "", "the record's timestamp"
	if r.Namespace != r.Name {
		namespace = r.Namespace
	}
	if r.Match != nil {
		match = describeMatch(r.Match)
	}
	if r.Time != nil {
		eventTime = fmt.Sprintf("field %s (%s)", r.Time.Field.Path.Text, r.Time.Format)
	}
	duplicates := describePolicy(r.Duplicates.Policy, r)
	if r.Duplicates.Policy == rules.ToTopic {
		duplicates = "to " + r.Duplicates.Topic
	}
	if r.Mode == rules.ClaimMode {
		duplicates = "" // answered on replies
	}
	collision := ""
	if r.Fingerprint != nil {
		var fields []string
		for _, f := range r.Fingerprint {
			fields = append(fields, f.Path.Text)
		}
		collision = "where " + strings.Join(fields, ", ") + " differ: " + describePolicy(r.Collision, r)
	}
	limits := ""
	if n := r.Limits.LiveKeys; n > 0 {
		limits = fmt.Sprintf("%d live keys in a partition; a new key beyond them: %s", n, describePolicy(r.Limits.OnLimit, r))
	}
	failing := "" // they wait
	if r.FailOpen {
		failing = "events go to " + r.Output + " unchecked, and are recorded afterwards"
	}
	facts := []fact{
		{"namespace", namespace},
		{"takes", strings.Join(r.Topics, ", ") + ", " + path},
		{"match", match},
		{"key", strings.Join(keys, "; else ")},
		{"hash", hash},
		{"window", fmt.Sprintf("%s by %s; grace %s, skew %s", shortDuration(r.Window), eventTime, shortDuration(r.Grace), shortDuration(r.Skew))},
		{"output", r.Output},
		{"duplicates", duplicates},
		{"collision", collision},
		{"missing key", describePolicy(r.OnMissingKey, r)},
		{"late", describePolicy(r.OnLate, r)},
		{"far future", describePolicy(r.OnFuture, r)},
		{"dead letter", r.DeadLetter},
		{"limits", limits},
		{"state fails", failing},
	}
	return slices.Concat(facts, describeClaims(r), describeHTTP(r))
}

// describeClaims are the facts of claim mode.
func describeClaims(r *rules.Route) []fact {
	if r.Mode != rules.ClaimMode {
		return nil
	}
	c := r.Claim
	inProgress, request := "told so at once", ""
	if c.Wait {
		inProgress = fmt.Sprintf("waits for the outcome, %s of an event at most", plural(c.MaxWaiting, "copy"))
	}
	if x := c.Request; x != nil {
		request = "field " + x.Field.Path.Text
		if x.Header != "" {
			request = "header " + x.Header
		}
	}
	return []fact{
		{"outcomes", c.Outcomes},
		{"replies", c.Replies},
		{"lease", shortDuration(c.Lease)},
		{"while in progress", inProgress},
		{"result limit", plural(c.ResultBytes, "byte")},
		{"request id", request},
	}
}

func describeMatch(m *rules.Match) string {
	what := "field " + m.Field.Path.Text
	if m.Header != "" {
		what = "header " + m.Header
	}
	quoted := make([]string, len(m.In))
	for i, v := range m.In {
		quoted[i] = strconv.Quote(v)
	}
	return what + " is " + strings.Join(quoted, " or ")
}

func describePolicy(p rules.Policy, r *rules.Route) string {
	switch p {
	case rules.DeadLetter:
		return "to " + r.DeadLetter
	case rules.Forward:
		return "forwarded to " + r.Output + ", marked"
	case rules.Drop:
		return "dropped and counted"
	case rules.Clamp:
		return "event time set to the broker's present plus skew"
	default:
		return p.String()
	}
}
