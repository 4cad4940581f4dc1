//go:build unix

package executors_test

import (
	"os"
	"testing"

	"oncebus/processor/kafkatest/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m).Run()) }
