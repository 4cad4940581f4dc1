package rules

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"name", "topics", "key", "window", "output", "on_missing_key", "limit", "lease"}
	for mistyped, want := range map[string]string{
		"topic": "topics", "keys": "key", "windw": "window", "Window": "window", "missing_key": "on_missing_key",
		"ouptut": "output", "naem": "name", "limti": "limit", "laese": "lease", "outputs": "output", "": "", "c": "", "<<": "", "retries": "",
	} {
		if got := Nearest(mistyped, names); got != want {
			t.Errorf("%q: got %q, want %q", mistyped, got, want)
		}
	}
}
