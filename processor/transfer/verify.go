package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"oncebus/dedup"
	"oncebus/processor/portable"
)

// Checked describes the content of a complete file.
type Checked struct {
	Header  portable.Header  `json:"header"`
	Trailer portable.Trailer `json:"trailer"`
	SHA256  string           `json:"sha256"` // SHA-256 of the content, as in the last bytes of the file
}

// Check reads a file to its end. Errors about the content of the file wrap portable.ErrFile. watch is called
// with the number of rows.
func Check(ctx context.Context, from io.Reader, watch func(rows int64)) (*Checked, error) {
	r, err := portable.NewReader(from)
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for _, err := range r.Rows() {
		if err != nil {
			return nil, err
		}
		if n++; n%portable.RowsPerBlock == 0 {
			watch(n)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return &Checked{Header: r.Header, Trailer: *r.Trailer(), SHA256: r.Digest()}, nil
}

// Compared is the result of a comparison: which rows of a file an app has.
type Compared struct {
	Rows      int64 `json:"rows"`
	There     int64 `json:"there"`     // a row with the same key, state and first seen time
	Missing   int64 `json:"missing"`   // no row
	Different int64 `json:"different"` // a row of another event, or in another state
	Expired   int64 `json:"expired"`   // no row any more, because it would no longer decide on any event
	// Newer counts the keys for which the app has a newer row than the file, because an event of the key came
	// after the window, or the claim of the key continued.
	Newer int64 `json:"newer"`
	// NoRoute counts the keys of namespaces for which the app has no route; NoRouteIn has the names of these
	// namespaces. No event of the app has such a key, and a seed leaves these keys out.
	NoRoute   int64    `json:"no_route"`
	NoRouteIn []string `json:"no_route_in,omitempty"`
	// Examples has some of the missing and of the different rows.
	Examples []Example `json:"examples"`
}

// Example is a row of a file that the app does not have, or has in another state.
type Example struct {
	Digest    string `json:"digest"`
	Namespace string `json:"namespace"`
	What      string `json:"what"` // missing or different
	First     int64  `json:"first_seen"`
	AppFirst  int64  `json:"app_first_seen,omitempty"`
	Status    string `json:"status"`
	AppStatus string `json:"app_status,omitempty"`
}

// examplesMax is the largest number of Compared.Examples.
const examplesMax = 10

// compared is a row of the file, and what the app has about its key.
type compared struct {
	first, appFirst   int64
	fingerprint, appF uint64
	namespace         string
	id                int // id of the namespace in the app; -1 if the app lacks it
	status, appStatus dedup.Status
	found, lives      bool
}

// Compare compares a whole file with the app. open opens the file at its start. watch is called with how many
// changelog offsets were read.
func (c *Client) Compare(ctx context.Context, open func() (io.ReadCloser, error), rows int64, watch func(done, total int64)) (*Compared, error) {
	for attempt := 1; ; attempt++ {
		result, err := c.compare(ctx, open, rows, watch)
		if !errors.Is(err, errMoved) || attempt == readAttempts {
			return result, c.explain(err)
		}
		c.log.Info("comparison begins again", "reason", err)
	}
}

func (c *Client) compare(ctx context.Context, open func() (io.ReadCloser, error), rows int64, watch func(done, total int64)) (*Compared, error) {
	var snapshots []*snapshot
	for _, id := range c.tasks() {
		s, err := c.snapshotOf(ctx, id)
		if err != nil {
			return nil, err
		}
		snapshots = append(snapshots, s)
	}
	if home := c.homePortions(rows, snapshots); len(home) > 1 {
		result, err := c.comparePortions(ctx, open, rows, home, snapshots, watch)
		if err != nil || result.Missing+result.Different == 0 {
			return result, err
		}
	}
	return c.comparePortions(ctx, open, rows, c.digestPortions(rows, snapshots), snapshots, watch)
}

// A portion is a part of the keys that fits into memory, with the tasks that may have these keys.
type portion struct {
	tasks []*snapshot
	has   func(*dedup.Digest) bool
}

// homePortions returns portions by the partition to which the app assigns a digest, so that each changelog is
// read only once, however many keys there are. But a key of the source order or of a prepartitioned topic may
// be in another partition. Therefore a comparison with these portions can prove that no key is missing, but not
// that a key is missing.
func (c *Client) homePortions(rows int64, snapshots []*snapshot) (all []portion) {
	var routed []*snapshot
	for _, s := range snapshots {
		if s.id.Topic == c.app.Topology.Repartition {
			routed = append(routed, s)
		}
	}
	if len(routed) == 0 {
		return nil
	}
	most := max(1, c.SliceKeys)
	each := rows/int64(len(routed)) + 1
	for group := range slices.Chunk(routed, int(max(1, most/each))) {
		home := map[int32]bool{}
		for _, s := range group {
			home[s.id.Partition] = true
		}
		n := uint32(1 + (each-1)/most)
		for slice := range n {
			all = append(all, portion{group, func(d *dedup.Digest) bool { return sliceOf(d, n) == slice && home[c.app.Hasher.Partition(d)] }})
		}
	}
	return all
}

// digestPortions returns portions by digest: the keys of a portion may be in any task, so each portion reads
// all changelogs.
func (c *Client) digestPortions(rows int64, snapshots []*snapshot) (all []portion) {
	n := uint32(1 + rows/max(1, c.SliceKeys))
	for slice := range n {
		all = append(all, portion{snapshots, func(d *dedup.Digest) bool { return sliceOf(d, n) == slice }})
	}
	return all
}

// comparePortions compares one portion after the other. Together the portions have all rows of the file;
// snapshots has all tasks.
func (c *Client) comparePortions(ctx context.Context, open func() (io.ReadCloser, error), rows int64, portions []portion, snapshots []*snapshot, watch func(done, total int64)) (*Compared, error) {
	var done, total, read int64
	for _, p := range portions {
		for _, s := range p.tasks {
			total += s.end - s.start
		}
	}
	result := &Compared{Examples: []Example{}}
	for _, p := range portions {
		keys, n, err := c.keysOf(open, p.has)
		if err != nil {
			return nil, err
		}
		read += n
		for _, s := range p.tasks {
			last := s.start
			err := s.rows(ctx, func(p int64) { done, last = done+p-last, p; watch(done, total) }, func(row *dedup.Row, _ rowID) error {
				if key := keys[row.Digest]; key != nil && key.id == int(row.NamespaceID) {
					key.found, key.lives = true, s.lives(row)
					key.appFirst, key.appF, key.appStatus = row.First, row.Fingerprint, row.Status
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		c.conclude(result, keys, snapshots)
	}
	if read != rows {
		return nil, fmt.Errorf("%d rows were compared, the file had %d when it was checked", read, rows)
	}
	return result, nil
}

// keysOf returns the rows of the file that belong to a portion, by key, and the number of these rows.
func (c *Client) keysOf(open func() (io.ReadCloser, error), has func(*dedup.Digest) bool) (keys map[dedup.Digest]*compared, rows int64, err error) {
	file, err := open()
	if err != nil {
		return nil, 0, err
	}
	r, err := portable.NewReader(file)
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	ids := make([]int, len(r.Header.Namespaces))
	for i := range ids {
		ids[i] = c.namespaceOf(r.Header.Namespaces[i].Name)
	}
	keys = map[dedup.Digest]*compared{}
	for row, err := range r.Rows() {
		if err != nil {
			return nil, 0, errors.Join(err, file.Close())
		}
		if has(&row.Digest) {
			rows++
			keys[row.Digest] = &compared{first: row.First, fingerprint: row.Fingerprint, namespace: r.Header.Namespaces[row.NamespaceID].Name, id: ids[row.NamespaceID], status: row.Status}
		}
	}
	return keys, rows, file.Close()
}

// namespaceOf returns the id of a namespace in the app; -1 if the app does not have it.
func (c *Client) namespaceOf(name string) int {
	for id, have := range c.app.Namespaces {
		if have == name {
			return id
		}
	}
	return -1
}

// conclude compares each key of the file with what the app has about it, and counts the results.
func (c *Client) conclude(result *Compared, keys map[dedup.Digest]*compared, snapshots []*snapshot) {
	windows := c.windows()
	for digest, key := range keys {
		result.Rows++
		window, routed := windows[key.id]
		what := ""
		switch {
		case key.found && key.appFirst == key.first && key.appStatus == key.status && key.appF == key.fingerprint && key.lives:
			result.There++
		case !routed:
			result.NoRoute++
			if !slices.Contains(result.NoRouteIn, key.namespace) {
				result.NoRouteIn = append(result.NoRouteIn, key.namespace)
			}
		case key.first < c.horizonOf(&digest, key.id, snapshots) && (!key.found || !key.lives || key.appFirst <= key.first):
			result.Expired++
		case key.found && key.wentOn(window):
			result.Newer++
		case key.found && key.lives:
			result.Different++
			what = "different"
		default:
			result.Missing++
			what = "missing"
		}
		if what == "" || len(result.Examples) == examplesMax {
			continue
		}
		e := Example{Digest: digest.String(), Namespace: key.namespace, What: what, First: key.first, Status: key.status.String()}
		if key.found {
			e.AppFirst, e.AppStatus = key.appFirst, key.appStatus.String()
		}
		result.Examples = append(result.Examples, e)
	}
	slices.Sort(result.NoRouteIn)
}

// windows returns the shortest window of each namespace that has a route, in ms.
func (c *Client) windows() map[int]int64 {
	all := map[int]int64{}
	for _, r := range c.app.Routes {
		id, window := int(r.NamespaceID), r.Window.Milliseconds()
		if known, ok := all[id]; !ok || window < known {
			all[id] = window
		}
	}
	return all
}

// wentOn reports whether the app's row may be a later state of the key than the row of the file.
func (k *compared) wentOn(window int64) bool {
	if k.status == dedup.ClaimInProgress || k.status == dedup.Submitted {
		return k.appFirst >= k.first // the claim got its outcome, or a new attempt after an outcome that freed the key
	}
	return k.lives && k.appFirst > k.first+window
}

// horizonOf returns the first seen time, in ms, before which the row of a key decides on no event. If the task
// of the key is unknown, horizonOf returns the lowest horizon of all tasks.
func (c *Client) horizonOf(digest *dedup.Digest, id int, snapshots []*snapshot) int64 {
	lowest := int64(math.MaxInt64)
	for _, r := range c.app.Routes {
		if int(r.NamespaceID) != id {
			continue
		}
		topic := c.app.Topology.TaskTopicOf(r.Route)
		for _, s := range snapshots {
			if s.id.Topic != topic {
				continue
			}
			if !r.Prepartitioned && r.AdjacentStepMS == 0 && s.id.Partition != c.app.Hasher.Partition(digest) {
				continue
			}
			lowest = min(lowest, s.horizons[id])
		}
	}
	if lowest == math.MaxInt64 {
		return math.MinInt64
	}
	return lowest
}
