//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"oncebus/processor/kafkatest"
)

// envRole makes a process of this program a helper process; see runRole.
const envRole = "ONCEBUS_FAULTS_ROLE"

// roleBurn is the role of a process that uses all the CPU it can get.
const roleBurn = "burn"

// runRole is the main function of a helper process.
func runRole(role string) {
	if role != roleBurn {
		fmt.Fprintf(os.Stderr, "faults: %s=%s: unknown role\n", envRole, role)
		os.Exit(2)
	}
	for n := uint64(1); ; n += n >> 1 { // until it is killed
		if n == 0 {
			n = 1
		}
	}
}

// startBurners starts n processes that use CPU.
func startBurners(ctx context.Context, n int) ([]*kafkatest.Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var burners []*kafkatest.Process
	for range n {
		cmd := exec.CommandContext(context.WithoutCancel(ctx), exe)
		cmd.Env = []string{envRole + "=" + roleBurn}
		p, err := kafkatest.StartProcess(cmd)
		if err != nil {
			for _, b := range burners {
				err = errors.Join(err, b.Kill())
			}
			return nil, err
		}
		burners = append(burners, p)
	}
	return burners, nil
}
