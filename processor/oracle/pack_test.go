package oracle

import (
	"strings"
	"testing"
)

// packed plays the story of a random model whose rows are in packs, and returns its last
// pack.
func packed(t *testing.T) (w *scenario, pack *Record) {
	t.Helper()
	w = play(1, 400)
	live := w.h.Live[w.cfg.Changelog]
	for i := range live {
		if isPack(&live[i]) {
			pack = &live[i]
		}
	}
	if pack == nil {
		t.Fatal("no pack")
	}
	return w, pack
}

// TestPacks: Check reads packs as the rows in them, and finds what is wrong with one row.
func TestPacks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Record)
		want   string
	}{
		"whole":                      {func(*Record) {}, ""},
		"cut":                        {func(r *Record) { r.Value = r.Value[:len(r.Value)-1] }, "is not a pack of rows"},
		"unknown version":            {func(r *Record) { r.Value[0] = 9 }, "is not a pack of rows"},
		"unknown flag":               {func(r *Record) { r.Value[17] |= 128 }, "is not a pack of rows"},
		"two links":                  {func(r *Record) { r.Value[17] |= 24 }, "is not a pack of rows"},
		"without its place":          {func(r *Record) { r.Value[17] &^= 2 }, "is not a pack of rows"},
		"key of another transaction": {func(r *Record) { r.Key[12] -= 2 }, "the key of pack 0"},
		"key of another pack":        {func(r *Record) { r.Key[16]++ }, "the key of pack 0"},
		"empty":                      {func(r *Record) { r.Value = r.Value[:1] }, "is not a pack of rows"},
		"another digest":             {func(r *Record) { r.Value[1] ^= 1 }, "which no event explains"},
		"another first time":         {func(r *Record) { r.Value[21] ^= 2 }, "row 0 of the transaction"},
	} {
		w, pack := packed(t)
		c.change(pack)
		_, violations := Check(w.cfg, w.end())
		text := ""
		for _, v := range violations {
			text += v.String() + "\n"
		}
		if (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
