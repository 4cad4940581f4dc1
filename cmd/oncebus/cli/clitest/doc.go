// Package clitest runs the commands of oncebus inside the process of a test. Only tests import it.
package clitest
