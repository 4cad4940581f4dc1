//go:build unix

package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMetricsAreSummedByName(t *testing.T) {
	families, err := ParseMetrics([]byte("# HELP a b\n# TYPE a gauge\na{x=\"1 2\",y=\"}\"} 2\na{x=\"3\"} 0.5\nb 1e+06\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := Sums(families)
	if len(got) != 2 || got["a"] != 2.5 || got["b"] != 1e6 {
		t.Errorf("parsed %v", got)
	}
}

func TestLogReaderFindsTheAddress(t *testing.T) {
	s := &Service{log: newLogReader()}
	for _, part := range []string{`{"msg":"starting"}` + "\n" + `{"msg":"http li`, `stening","addr":"127.0.0.1:7"}` + "\n", "x"} {
		if _, err := s.log.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Address(ListensHTTP); got != "127.0.0.1:7" {
		t.Errorf("address %q", got)
	}
}

// TestServiceReadsItsLogFile does so as the file grows.
func TestServiceReadsItsLogFile(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := &Service{log: newLogReader(), path: file.Name()}
	for _, step := range []struct{ write, want string }{
		{`{"msg":"starting"}` + "\n" + `{"msg":"http li`, ""},
		{`stening","addr":"127.0.0.1:7"}` + "\n", "127.0.0.1:7"},
	} {
		if _, err := file.WriteString(step.write); err != nil {
			t.Fatal(err)
		}
		if got := s.Address(ListensHTTP); got != step.want {
			t.Errorf("address %q, want %q", got, step.want)
		}
	}
	if got := s.LogTail(); !strings.HasPrefix(got, `{"msg":"starting"}`) {
		t.Errorf("the log's end is %q", got)
	}
}
