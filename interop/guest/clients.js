// Uses a share with one of the SMB clients for Node.js, as any script would, and prints how each step ended.
//
// clients.js CLIENT SERVER SHARE USER PASSWORD
'use strict';

const assert = require('assert/strict');
const { createHash } = require('crypto');
const { basename } = require('path');
const { inspect } = require('util');

const sizes = [0, 1, 4095, 65537, 1 << 20, 3145729];

// @marsaud/smb2, and v9u-smb2, which has its interface.
async function marsaud(module, server, share, username, password) {
  const SMB2 = require(module);
  const client = new SMB2({ share: `\\\\${server}\\${share}`, domain: 'WORKGROUP', username, password, autoCloseTimeout: 0 });
  await client.readdir('');
  return {
    async sizes() {
      const found = {};
      for (const name of await client.readdir('')) found[name] = await client.getSize(name);
      return found;
    },
    write: (name, data) => client.writeFile(name, data),
    read: (name) => client.readFile(name),
    rename: (name, other) => client.rename(name, other),
    remove: (name) => client.unlink(name),
  };
}

async function awo00(module, server, share, username, password) {
  const smb2 = require(module);
  const client = new smb2.Client(server);
  const session = await client.authenticate({ domain: 'WORKGROUP', username, password });
  const tree = await session.connectTree(share);
  return {
    async sizes() {
      const files = (await tree.readDirectory('/')).filter((entry) => entry.type !== 'Directory');
      return Object.fromEntries(files.map((entry) => [basename(entry.filename), Number(entry.fileSize)]));
    },
    write: (name, data) => tree.createFile(`/${name}`, data),
    read: (name) => tree.readFile(`/${name}`),
    rename: (name, other) => tree.renameFile(`/${name}`, `/${other}`),
    remove: (name) => tree.removeFile(`/${name}`),
  };
}

// Bytes that depend on the size alone.
function bytes(size) {
  const blocks = [];
  for (let at = 0; at < size; at += 32) blocks.push(createHash('sha256').update(`${size} ${at}`).digest());
  return Buffer.concat(blocks).subarray(0, size);
}

async function step(name, does) {
  try {
    const result = await does();
    console.log(name, 'ok');
    return result;
  } catch (error) {
    console.log(name, error.code || error.name || 'error');
    console.error(`${name}: ${error.message || inspect(error)}`);
  }
}

async function list(client, files) {
  const found = Object.entries(await client.sizes()).sort();
  assert.deepEqual(found, files.map(([file, data]) => [file, data.length]).sort());
}

async function compare(client, file, data) {
  assert.ok(data.equals(await client.read(file)), 'other bytes came back');
}

async function main() {
  const [name, ...where] = process.argv.slice(2);
  const client = await step('connect', () => (name === '@awo00/smb2' ? awo00 : marsaud)(name, ...where));
  if (!client) return;
  const files = sizes.map((size) => [`f${size}`, bytes(size)]);
  for (const [file, data] of files) await step(`write-${file}`, () => client.write(file, data));
  await step('list', () => list(client, files));
  for (const [file, data] of files) await step(`read-${file}`, () => compare(client, file, data));
  const [last, data] = files.pop();
  await step('rename', () => client.rename(last, 'renamed'));
  await step('read-renamed', () => compare(client, 'renamed', data));
  for (const [file] of [...files, ['renamed']]) await step(`delete-${file}`, () => client.remove(file));
  await step('list-empty', () => list(client, []));
}

main().then(() => process.exit(0));
