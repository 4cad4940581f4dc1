//go:build unix

package program

import (
	"os"
	"strings"
)

// Settings has the settings that every process of oncebus needs.
type Settings struct {
	Brokers  []string
	AppID    string
	Instance string
	Routes   string // path of the routes file
	StateDir string
	// More has further settings in the form NAME=value, without the prefix ONCEBUS_. If a name occurs twice, the last
	// value counts.
	More []string
}

// prefix begins the names of all settings of oncebus.
const prefix = "ONCEBUS_"

// Environ returns the settings as environment variables. It adds a free loopback port for the HTTP server, and JSON
// as the log format, because [Log] reads JSON.
func (s Settings) Environ() []string {
	settings := []string{
		"BROKERS=" + strings.Join(s.Brokers, ","), "APP_ID=" + s.AppID, "INSTANCE_ID=" + s.Instance, "ROUTES=" + s.Routes,
		"STATE_DIR=" + s.StateDir, "ADMIN_ADDR=127.0.0.1:0", "LOG_FORMAT=json",
		// By default tasks pause when less than a tenth of the disk is free. A machine that builds and tests may have
		// a fuller disk, so the limits are switched off.
		"DISK_MIN_FREE_PERCENT=0", "DISK_START_MIN_FREE_PERCENT=0",
	}
	var env []string
	for _, setting := range append(settings, s.More...) {
		env = append(env, prefix+setting)
	}
	return env
}

// Inherited returns the environment of this process without the settings of oncebus.
func Inherited() (env []string) {
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, prefix) {
			env = append(env, variable)
		}
	}
	return env
}

// Isolated returns an environment that has only PATH and HOME.
func Isolated(home string) []string { return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home} }
