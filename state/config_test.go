package state

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestConfigReportsAllMistakes(t *testing.T) {
	must(t, DefaultConfig().Validate())
	err := Config{FlushRows: -1, MergeFanIn: 99}.Validate()
	for _, name := range []string{"FLUSH_ROWS", "FLUSH_AGE", "MEMORY_ROWS", "PAGE_BYTES", "MERGE_FAN_IN", "BACKGROUND_JOBS"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	if _, err := NewHost(Config{}, prometheus.NewRegistry(), quiet()); err == nil {
		t.Error("NewHost accepts an invalid config")
	}
}
