//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// seedRun has the measurements of a seed, an export and a comparison, with one number of keys.
type seedRun struct {
	Keys  int
	Bytes int64 // size of the exported file in bytes
	// Seed, Export and Compare are the seconds from the start of each command to its end.
	Seed, Export, Compare float64
}

// seedPartitions is the number of tasks of the one process.
const seedPartitions = 12

// measureSeeds seeds keys from lines, exports them and compares the file with the app.
func measureSeeds(ctx context.Context, b *bed) (runs []seedRun, err error) {
	for _, keys := range b.s.seedKeys {
		r, err := seedOnce(ctx, b, keys)
		if err != nil {
			return runs, fmt.Errorf("%d keys: %w", keys, err)
		}
		b.progress.Done("%d keys: seeded in %.1f s, exported in %.1f s, %.1f bytes a key, compared in %.1f s", keys, r.Seed, r.Export, float64(r.Bytes)/float64(keys), r.Compare)
		runs = append(runs, r)
	}
	return runs, nil
}

func seedOnce(ctx context.Context, b *bed, keys int) (r seedRun, err error) {
	b.progress.Next("seed %d keys", keys)
	a, err := b.newApp(ctx, fmt.Sprintf("seed-%d", keys), shape{1, 2, seedPartitions}, false, manyKeys)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	services, err := a.startAll(ctx)
	defer func() { err = errors.Join(err, end(services...)) }()
	if err != nil {
		return r, err
	}
	r.Keys = keys
	dir := filepath.Join(b.broker.Dir, a.name)
	lines, file := filepath.Join(dir, "ids.tsv"), filepath.Join(dir, "keys.obx1")
	if err := writeIDs(lines, keys, time.Now().Add(-time.Minute), time.Now()); err != nil {
		return r, err
	}
	var seeded struct{ Taken int }
	use, err := a.command(ctx, &seeded, "seed", "--route", "signals", lines)
	if err == nil && seeded.Taken != keys {
		err = fmt.Errorf("%d of %d keys were taken", seeded.Taken, keys)
	}
	if err != nil {
		return r, err
	}
	r.Seed = use.Seconds
	var exported struct{ Rows, Bytes int64 }
	if use, err = a.command(ctx, &exported, "export", file); err == nil && exported.Rows != int64(keys) {
		err = fmt.Errorf("%d of %d keys were exported", exported.Rows, keys)
	}
	if err != nil {
		return r, err
	}
	r.Export, r.Bytes = use.Seconds, exported.Bytes
	var verified struct{ Compared struct{ There int64 } }
	if use, err = a.command(ctx, &verified, "verify", file); err == nil && verified.Compared.There != int64(keys) {
		err = fmt.Errorf("the app has %d of %d keys", verified.Compared.There, keys)
	}
	r.Compare = use.Seconds
	return r, err
}

// writeIDs writes the lines of a seed file. The ids were first seen between two times, in the order of the lines.
func writeIDs(name string, keys int, from, to time.Time) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 1<<20)
	first, span := from.UnixMilli(), float64(to.Sub(from).Milliseconds())
	for i := range keys {
		fmt.Fprintf(w, "seeded-%012d\t%d\n", i, first+int64(float64(i)/float64(keys)*span))
	}
	return errors.Join(w.Flush(), file.Close())
}

func (r *result) seedTable(b *strings.Builder) {
	if len(r.Seeds) == 0 {
		return
	}
	fmt.Fprintf(b, "## Seed and export\n\nOne process, %d tasks, without other traffic. Seeded from lines of ids; the whole file is checked first.\n\n"+
		"| keys | seed, s | keys/s | export, s | file, bytes a key | verify, s |\n| ---: | ---: | ---: | ---: | ---: | ---: |\n", seedPartitions)
	for _, s := range r.Seeds {
		fmt.Fprintf(b, "| %s | %.1f | %.0f | %.1f | %.1f | %.1f |\n", millions(s.Keys), s.Seed, float64(s.Keys)/s.Seed, s.Export, float64(s.Bytes)/float64(s.Keys), s.Compare)
	}
	b.WriteString("\n")
}
