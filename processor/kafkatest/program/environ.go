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
	Routes   string // path
	StateDir string
	// More has further settings, NAME=value without the prefix ONCEBUS_. The last one
	// of a name counts.
	More []string
}

// prefix begins the names of all settings of oncebus.
const prefix = "ONCEBUS_"

// Environ returns the settings as variables, with a free loopback port for the HTTP
// server, and JSON as the log format, which [Log] reads.
func (s Settings) Environ() []string {
	settings := []string{
		"BROKERS=" + strings.Join(s.Brokers, ","), "APP_ID=" + s.AppID, "INSTANCE_ID=" + s.Instance, "ROUTES=" + s.Routes,
		"STATE_DIR=" + s.StateDir, "ADMIN_ADDR=127.0.0.1:0", "LOG_FORMAT=json",
		// The disk of a machine that builds and tests is full of other things, and by default tasks pause below a tenth.
		"DISK_MIN_FREE_PERCENT=0", "DISK_START_MIN_FREE_PERCENT=0",
	}
	var env []string
	for _, setting := range append(settings, s.More...) {
		env = append(env, prefix+setting)
	}
	return env
}

// Inherited returns this process's environment without the settings of oncebus.
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
