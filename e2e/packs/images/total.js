#!/usr/bin/node
// Adds numbers, to show that a script runs in the image that has its interpreter.
const { numbers } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify({ total: numbers.reduce((a, b) => a + b, 0), node: process.versions.node }));
